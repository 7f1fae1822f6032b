# The enumerations of lnrnn.h for Python, which finds a member by the name that a user gives, Placement["SPLIT"].
# Part of _core.pyx.
from enum import IntEnum


class CellKind(IntEnum):
    RNN = LNRNN_RNN
    LSTM = LNRNN_LSTM
    GRU = LNRNN_GRU


class Activation(IntEnum):
    TANH = LNRNN_ACT_TANH
    RELU = LNRNN_ACT_RELU
    SIGMOID = LNRNN_ACT_SIGMOID
    IDENTITY = LNRNN_ACT_IDENTITY


class NormKind(IntEnum):
    NONE = LNRNN_NORM_NONE
    LAYER = LNRNN_NORM_LAYER
    BATCH = LNRNN_NORM_BATCH


class Placement(IntEnum):
    JOINT = LNRNN_JOINT
    SPLIT = LNRNN_SPLIT
    GATE = LNRNN_GATE


class Span(IntEnum):
    PAPER = LNRNN_SPAN_PAPER
    ALL = LNRNN_SPAN_ALL


class CellNorm(IntEnum):
    NONE = LNRNN_CELL_NONE
    OUT = LNRNN_CELL_OUT
    CARRY = LNRNN_CELL_CARRY


class Overrun(IntEnum):
    RAISE = LNRNN_OVERRUN_RAISE
    LAST = LNRNN_OVERRUN_LAST
    MEAN = LNRNN_OVERRUN_MEAN
    BATCH = LNRNN_OVERRUN_BATCH


class WeightType(IntEnum):
    FLOAT32 = LNRNN_WEIGHT_F32
    BFLOAT16 = LNRNN_WEIGHT_BF16
    INT8 = LNRNN_WEIGHT_I8
    INT8_OF_8_BITS = LNRNN_WEIGHT_I8A8


INT8_INPUTS = LNRNN_INT8_INPUTS


class Function(IntEnum):
    EXP = LNRNN_MAP_EXP
    TANH = LNRNN_MAP_TANH
    SIGMOID = LNRNN_MAP_SIGMOID

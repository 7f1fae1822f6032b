# Calls of torch modules that lnrnn computes. These functions decide in one call from Python how a call is
# computed.

# The arguments of a step after x.
cdef enum:
    NOTHING, NONE, ONE, TWO, PAIR, WAYS
STEP_WAYS = (NOTHING, NONE, ONE, TWO, PAIR, WAYS)


cdef bint is_small(x, tuple small, dict parameters) except *:
    """Returns whether x is a tensor that is small, and it or a parameter needs gradients.

    small: an axis of x, the largest length of that axis, and the number of elements that x must not reach."""
    cdef Sight s
    cdef int axis = small[0]
    if type(x) is not torch_tensor:
        return False
    try:
        look(&s, x)
    except RuntimeError:  # it has no memory
        return False
    if (axis >= s.ndim or s.ndim > AXES or s.n[axis] > <int64_t>small[1]
            or s.bytes >= sizeof(float) * <double>small[2]):
        return False
    for p in parameters.values():
        if p is not None and p.requires_grad:
            return True
    return x.requires_grad


def quick_call(module, x, state):
    """Returns the result of a call of an accelerated module if torch computes it because it is small, or if
    the kept weights serve it.

    Returns None for other calls. `_small` of the module: that of `is_small`."""
    cdef dict own = PyObject_GenericGetDict(module, NULL)
    cdef Kept kept
    if modes[0]():
        if own.get("_engine") is None and is_small(x, own["_small"], own["_parameters"]):
            return module._by_torch(x, state)
        return None
    kept = own.get("_kept")
    if kept is None or compile_callback() is not None:
        return None
    network = module._usual()
    return None if network is None else kept.call(network, own["_parameters"], x, state)


def quick_step(forward, tuple arguments):
    """Returns the result of a step of a custom cell by its own forward if it needs gradients, else by the
    kept weights.

    Returns None for other calls. forward: the Forward that replaces the cell's."""
    cdef dict own = PyObject_GenericGetDict(forward, NULL)
    cdef list owners = own["_owners"]
    cdef int ways = own["_ways"], way = NOTHING
    cdef Kept kept
    if not ways:
        return None
    if modes[0]():
        first = owners[0][0].get(owners[0][1])  # None after it was deleted, or parametrized
        if first is not None and not first.requires_grad:
            return None
        module = own["_module"]
        return type(module).forward(module, *arguments)
    kept = own["_kept"]
    if kept is None:
        return None
    state = None
    if len(arguments) == 2:
        state = arguments[1]
        way = NONE if state is None else PAIR if isinstance(state, (tuple, list)) else ONE
    elif len(arguments) == 3:
        way, state = TWO, arguments[1:]
    elif len(arguments) != 1:
        return None
    # Bit n of `axes`: whether x may have n axes.
    ways = (ways >> way & 1) << 2 | (ways >> (WAYS + way) & 1) << 3
    if not ways or not same_objects(*own["_compared"]):
        return None
    return kept.run(own["_network"], [owner[0].get(owner[1]) for owner in owners], arguments[0], state, ways)


@cython.binding(True)  # torch.compile warns of other compiled functions in code that it reads
def same_objects(list contents, list tensors, list constants):
    """Returns whether all values in lists of lnrnn.torch's Settings are the same objects, and tensors have
    the same versions.

    If not, values may still be equal."""
    cdef tuple entry
    cdef list tensor
    cdef Py_ssize_t k
    for entry in contents:
        of, then = entry[0], entry[1]
        if isinstance(then, list):
            if len(of) != len(<list>then):
                return False
            for k in range(len(<list>then)):
                if of[k] is not (<list>then)[k]:
                    return False
        else:
            own = of if isinstance(of, dict) else of.__dict__
            if len(own) != len(<dict>then) + len(<frozenset>entry[2]):
                return False
            for name, value in (<dict>then).items():
                if own.get(name, entry) is not value:  # entry: the name is absent
                    return False
    for tensor in tensors:
        if tensor[1] == -1 or tensor[0]._version != tensor[1]:
            return False
    for entry in constants:
        if getattr(entry[0], entry[1], entry) is not entry[2]:
            return False
    return True

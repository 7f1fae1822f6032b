"""Derives classes with lnrnn's forward from torch.nn's classes, and from classes derived from these."""

from __future__ import annotations

import copyreg
import inspect
from types import CodeType
from typing import Any

from torch.nn.utils.parametrize import is_parametrized

# Methods that torch.nn's forward calls, and lnrnn's does not.
_INNER = (
    "_flat_weights", "_init_flat_weights", "_update_flat_weights", "_weights_have_changed",
    "check_forward_args", "check_hidden_size", "check_input", "forward_impl", "forward_packed",
    "forward_tensor", "get_expected_cell_size", "get_expected_hidden_size", "permute_hidden",
)  # fmt: skip


def replaced(cls: Any) -> Any:
    """Returns the class that a class of `derived` replaces; the class itself for others."""
    return vars(cls).get("_replaces", cls)


def derived(cls: Any, own: Any) -> Any:
    """Returns a class derived from `cls`, whose super().forward is that of `own`.

    own: the class with lnrnn's forward, which is derived from the same class of torch.nn as `cls`. Raises
    TypeError if Python cannot derive the class.
    """
    if cls is replaced(own):
        return own
    for known in type.__subclasses__(cls):
        if vars(known).get("_replaces") is cls:
            return known
    name = f"Accelerated{cls.__name__}"
    inside = {
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
        "__reduce_ex__": _reduce,
        "_replaces": cls,
        "_own": own,
    }
    return type(cls)(name, (cls, own), inside)


def _reduce(module: Any, protocol: Any) -> Any:
    """Pickles and copies name the class that is replaced, because the derived class has no name."""
    cls: Any = next(base for base in type(module).__mro__ if "_own" in vars(base))
    result = super(cls, module).__reduce_ex__(protocol)
    if type(module) is cls and result[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
        return (_new, (cls._replaces, cls._own), *result[2:])
    return result


def _new(cls: Any, own: Any) -> Any:
    new = derived(cls, own)
    return new.__new__(new)


def parametrized(cls: Any, base: Any) -> Any:
    """Returns a class like `cls`, which torch has derived for a parametrized module, with another base.

    torch.nn.utils.parametrize makes a class for each module, and looks at its only base later.
    """
    inside = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    return type(f"Parametrized{base.__name__}", (base,), inside)


def set_class(module: Any, own: Any) -> None:
    """Sets the class of a module to the one derived from its class and `own`."""
    cls = type(module)
    if is_parametrized(module):
        module.__class__ = parametrized(cls, derived(cls.__bases__[0], own))
    else:
        module.__class__ = derived(cls, own)


def restore_class(module: Any) -> None:
    cls: Any = type(module)
    if is_parametrized(module):
        base = cls.__bases__[0]
        if replaced(base) is not base:
            module.__class__ = parametrized(cls, replaced(base))
    else:
        module.__class__ = replaced(cls)


def why_not(module: Any, base: Any, own: Any) -> str | None:
    """Returns why the class of a module cannot be replaced as `derived` does it, or None if it can be.

    base: the class of torch.nn.
    """
    cls: Any = type(module).__bases__[0] if is_parametrized(module) else type(module)
    between = cls.__mro__[: cls.__mro__.index(base)]
    for above in between:
        inner = sorted(set(_INNER) & vars(above).keys())
        if inner:
            names = ", ".join(inner)
            return f"its class {cls.__name__} has {names} of its own, which only torch.nn's forward calls"
        forward = vars(above).get("forward")
        if forward is not None and not _calls_super(forward):
            return (
                f"the forward of its class {above.__name__} does not call super().forward, the only call "
                "that lnrnn can compute"
            )
    ours = [each for each in own.__mro__ if not issubclass(base, each)]
    known = {name for each in ours for name in vars(each)} - {"forward", "_replaces"}
    known |= {name for each in ours for name in inspect.get_annotations(each) if name.startswith("_")}
    known = {name for name in known if not name.startswith("__") and not hasattr(base, name)}
    taken = known & {*vars(module), *(name for above in between for name in vars(above))}
    if taken:
        return f"its class {cls.__name__} uses lnrnn's names {', '.join(sorted(taken))}"
    try:
        derived(cls, own)
    except TypeError as error:
        return f"no class can be derived from its class {cls.__name__}: {error}"
    return None


def _calls_super(function: Any) -> bool:
    """Returns whether a function, or a function inside of it, calls super().forward."""
    inside = [getattr(inspect.unwrap(function), "__code__", None)]
    for code in inside:
        if code is not None:
            if "super" in code.co_names and "forward" in code.co_names:
                return True
            inside += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return False

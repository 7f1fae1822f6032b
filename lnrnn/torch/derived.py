"""Derives classes with lnrnn's forward from classes of torch.nn and their subclasses."""

from __future__ import annotations

import copyreg
import inspect
from typing import Any

from torch.nn import RNNBase, RNNCellBase
from torch.nn.utils.parametrize import is_parametrized

_BASES = RNNBase, RNNCellBase

# Methods that a subclass may override, because lnrnn's forward does not use them.
_FREE = {"forward", "extra_repr", "reset_parameters", "flatten_parameters"}


def replaced(cls: Any) -> Any:
    """Returns the class from which `derived` made a class, or the class itself if it is another one."""
    return vars(cls).get("_replaces", cls)


def derived(cls: Any, own: Any) -> Any:
    """Returns a subclass of `cls` whose super().forward is own.forward.

    own: the class with lnrnn's forward; it and `cls` derive from the same class of torch.nn. Raises
    TypeError if Python cannot create the class.
    """
    if cls is replaced(own):
        return own
    for known in type.__subclasses__(cls):
        if vars(known).get("_replaces") is cls:
            return known
    name = f"Accelerated{cls.__name__}"
    inside = {"__module__": cls.__module__, "__doc__": cls.__doc__, "__reduce_ex__": _reduce}
    return type(cls)(name, (cls, own), {**inside, "_replaces": cls, "_own": own})


def _reduce(module: Any, protocol: Any) -> Any:
    """Pickles a module under its original class, because the derived class has no importable name."""
    cls: Any = next(base for base in type(module).__mro__ if "_own" in vars(base))
    result = super(cls, module).__reduce_ex__(protocol)
    if type(module) is cls and result[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
        return (_new, (cls._replaces, cls._own), *result[2:])
    return result


def _new(cls: Any, own: Any) -> Any:
    new = derived(cls, own)
    return new.__new__(new)


def restore_class(module: Any) -> None:
    """Restores a module's original class, which computes with torch."""
    cls: Any = type(module)
    if "_replaces" in vars(cls):
        module.__class__ = cls._replaces
    elif is_parametrized(module):  # torch has derived a class from the derived one since then
        cls.__bases__ = tuple(map(replaced, cls.__bases__))


def why_not(module: Any, base: Any, own: Any) -> str | None:
    """Returns the reason why `derived` cannot replace a module's class, or None.

    base: the class of torch.nn. own: the class with lnrnn's forward.
    """
    cls: Any = type(module)
    between = cls.__mro__[: cls.__mro__.index(base)]
    for above in between:
        forward = vars(above).get("forward")
        code = getattr(inspect.unwrap(forward), "__code__", None) if forward else None
        if forward and not {"super", "forward"} <= {*getattr(code, "co_names", ())}:
            return (
                f"the forward of its class {above.__name__} does not call super().forward, the only call "
                "that lnrnn can compute"
            )
    theirs = {name for each in base.__mro__ if issubclass(each, _BASES) for name in vars(each)}
    ours = {name for each in own.__mro__ if not issubclass(base, each) for name in vars(each)}
    ours = {name for name in ours if not hasattr(base, name)}
    taken = {name for above in between for name in vars(above)} & (theirs | ours) | {*vars(module)} & ours
    taken = {name for name in taken if not (name in _FREE or name.startswith("__"))}
    if taken:
        names = ", ".join(sorted(taken))
        return f"its class {cls.__name__} has {names} of its own, which torch.nn's class or lnrnn's has too"
    try:
        derived(cls, own)
    except TypeError as error:
        return f"no class can be derived from its class {cls.__name__}: {error}"
    return None

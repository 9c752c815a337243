"""Shorter ways through Triton's interpreter, to the same numbers.

The interpreter carries each operation of a kernel out with numpy. On tiles of a few hundred numbers
that is quick; what takes its time is the Python around it: types that are made anew for every
result and compared by their names, casts and broadcasts that change nothing, and sums computed once
more for an assertion that nobody makes. Here these are found once and looked up from then on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

# The functions that are replaced were read in these versions. Others run as they are, slower.
_READ = ("3.7.",)


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """While active, what Triton's interpreter computes costs less of Python."""
    interpreter: Any = sys.modules["triton.runtime.interpreter"]
    core: Any = sys.modules["triton.language.core"]
    with contextlib.ExitStack() as stack:
        replace = functools.partial(_replace, stack)
        if sys.modules["triton"].__version__.startswith(_READ):
            replace(interpreter, "_patch_attr", _patched_through(interpreter, core))
        replace(interpreter, "_patch_lang", _patched_once(interpreter))
        if sys.modules["triton"].__version__.startswith(_READ):
            _quicker_types(interpreter, core, replace)
            _quicker_operations(interpreter, core, replace)
        yield


Replace = Callable[[Any, str, Any], None]


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute until the stack is closed."""
    own = vars(owner)
    if name in own:
        stack.callback(setattr, owner, name, own[name])
    else:
        stack.callback(delattr, owner, name)
    setattr(owner, name, value)


# What the interpreter changed in Triton's language, by the modules that a kernel sees of it.
_changes: dict[frozenset[str], list[tuple[Any, str, Any]]] = {}


def _patched_once(interpreter: Any) -> Callable[[Any], Any]:
    """``_patch_lang``, which looks for what to patch in a module once, and once a launch patches.

    The interpreter looks through hundreds of attributes at every launch, and at every ``tl.max``.
    """
    patch = interpreter._patch_lang
    languages = (interpreter.tl, interpreter.tl.core)
    scopes: dict[int, Any] = {}

    def once(function: Any) -> Any:
        module = id(function.__globals__)
        if module in scopes:
            return scopes[module]
        seen = list(function.__globals__.values())
        key = frozenset(x.__name__ for x in languages if any(x is value for value in seen))
        if key in _changes:
            scope = interpreter._LangPatchScope()
            for change in _changes[key]:
                scope.set_attr(*change)
        else:
            scope = patch(function)
            _changes[key] = [(owner, name, vars(owner)[name]) for owner, name, _ in scope._changes]
        scopes[module] = scope
        return scope

    return once


def _patched_through(interpreter: Any, core: Any) -> Callable[..., None]:
    """``_patch_attr``, which hands a builtin its semantic without asking whether it has one."""
    wrapper = core.builtin(lambda: None).__code__
    semantic = interpreter.interpreter_semantic

    def patch(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        if getattr(member, "__code__", None) is wrapper:
            member = member.__wrapped__

        def called(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return member(*args, **kwargs)

        scope.set_attr(owner, name, called)

    return patch


_block_types: dict[tuple[Any, ...], Any] = {}
_block_types_like: dict[tuple[int, str], Any] = {}
_numpy_dtypes: dict[str, Any] = {}
_fitting: dict[tuple[int, str], bool] = {}


@functools.cache
def _kept(block_type: Any, core: Any) -> Any:
    """The class of block types, of which there is one for each shape and element.

    Attributes:
        sizes: the shape in numbers.
        of_tensors: ``numel`` and ``shape`` of a tensor of this type.
    """
    constexpr = core.constexpr

    class Kept(block_type):
        def __new__(cls, element_ty: Any, shape: Any) -> Any:
            sizes = [size.value if type(size) is constexpr else size for size in shape]
            key = (element_ty.name, *sizes)
            found = _block_types.get(key)
            if found is None:
                found = super().__new__(cls)
                block_type.__init__(found, element_ty, shape)
                found.sizes = tuple(sizes)
                found.of_tensors = constexpr(found.numel), core.tuple([constexpr(s) for s in sizes])
                _block_types[key] = found
            return found

        def __init__(self, element_ty: Any, shape: Any) -> None:
            pass  # it is as it was made

        def __eq__(self, other: object) -> bool:
            return self is other or block_type.__eq__(self, other)

        __hash__ = block_type.__hash__

        def with_element_ty(self, scalar_ty: Any) -> Any:
            key = (id(self), scalar_ty.name)
            found = _block_types_like.get(key)
            if found is None:
                found = _block_types_like[key] = type(self)(scalar_ty, self.shape)
            return found

    return Kept


def _quicker_types(interpreter: Any, core: Any, replace: Replace) -> None:
    """Each block type is made and checked once; a type is itself before it has an equal name."""
    block_type, tensor = core.block_type, core.tensor
    initialised, numpy_dtype, equal = tensor.__init__, interpreter._get_np_dtype, core.dtype.__eq__
    validate = interpreter._validate_np_data_size
    unwrap, of_scalars = core._unwrap_if_constexpr, (core.constexpr(1), core.tuple([]))

    def initialise(self: Any, handle: Any, type: Any) -> None:
        of_tensors = getattr(type, "of_tensors", None)
        if of_tensors is None:
            if type.is_block():
                initialised(self, handle, type)
                return
            of_tensors = of_scalars
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = of_tensors

    def looked_up(dtype: Any) -> Any:
        found = _numpy_dtypes.get(dtype.name)
        if found is None:
            found = _numpy_dtypes[dtype.name] = numpy_dtype(dtype)
        return found

    def fits(data: Any, dtype: Any) -> bool:
        key = (data.itemsize, dtype.name)
        found = _fitting.get(key)
        if found is None:
            found = _fitting[key] = validate(data, dtype)
        return found

    kept = _kept(block_type, core)
    plain = frozenset((tensor, core.dtype, kept, int, float, bool, str, type(None)))

    def unwrapped(value: Any) -> Any:
        return value if type(value) in plain else unwrap(value)

    for module in (core, interpreter.tl):
        replace(module, "block_type", kept)
    replace(core, "_unwrap_if_constexpr", unwrapped)
    replace(core.dtype, "__eq__", lambda self, other: self is other or equal(self, other))
    replace(tensor, "__init__", initialise)
    replace(interpreter, "_get_np_dtype", looked_up)
    replace(interpreter, "_validate_np_data_size", fits)


_common: dict[tuple[int, int], tuple[Any, Any]] = {}


def _quicker_operations(interpreter: Any, core: Any, replace: Replace) -> None:
    """No cast to what a tensor is already, no broadcast to a shape that it has."""
    builder, semantic = interpreter.interpreter_builder, type(interpreter.interpreter_semantic)
    tensor, handle = core.tensor, interpreter.TensorHandle
    checked, cast = semantic.binary_op_type_checking_impl, semantic.cast
    broadcast, splat = semantic.broadcast_impl_value, builder.create_splat

    def check(self: Any, lhs: Any, rhs: Any, *flags: bool, **named: bool) -> Any:
        alike = type(lhs) is tensor and type(rhs) is tensor and lhs.type is rhs.type
        # a division of half precision is made in float32
        if alike and not lhs.dtype.is_ptr() and len(flags) < 4 and "div_or_mod" not in named:
            return lhs, rhs
        return checked(self, lhs, rhs, *flags, **named)

    def cast_to(self: Any, value: Any, dtype: Any, rounding: str | None = None) -> Any:
        if value.type.scalar is dtype.scalar:
            return value
        return cast(self, value, dtype, rounding)

    def broadcast_both(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.type is rhs.type:
            return lhs, rhs
        if not (hasattr(lhs.type, "sizes") and hasattr(rhs.type, "sizes")):
            return broadcast(self, lhs, rhs)
        key = (id(lhs.type), id(rhs.type))  # these types live as long as this module
        if key not in _common:
            wide = broadcast(self, lhs, rhs)
            _common[key] = wide[0].type, wide[1].type
            return wide
        return tuple(
            item if item.type is wide else tensor(broadcast_to(item.handle, wide.sizes), wide)
            for item, wide in zip((lhs, rhs), _common[key], strict=True)
        )

    def broadcast_to(item: Any, sizes: Any) -> Any:
        return handle(np.broadcast_to(item.data, tuple(sizes)), item.dtype.scalar)

    def fill(block_type: Any, item: Any) -> Any:
        if not hasattr(block_type, "sizes") or item.data.shape != (1,):
            return splat(block_type, item)
        data = np.empty(block_type.sizes, interpreter._get_np_dtype(item.dtype))
        data[...] = item.data
        return handle(data, item.dtype.scalar)

    replace(semantic, "binary_op_type_checking_impl", check)
    replace(semantic, "cast", cast_to)
    replace(semantic, "broadcast_impl_value", broadcast_both)
    replace(builder, "create_splat", fill)
    if not builder.options.debug:  # then nobody asserts that sums of integers did not overflow
        options = dataclasses.replace(builder.options, sanitize_overflow=False)
        replace(builder, "options", options)
        _quicker_on_two(interpreter, core, replace)


# Methods of the semantic on two operands: what the builder calls them for floating-point numbers
# and for signed integers.
_ON_TWO = {
    "add": ("create_fadd", "create_add"),
    "sub": ("create_fsub", "create_sub"),
    "mul": ("create_fmul", "create_mul"),
}
_COMPARISONS = {
    "greater_than": ("create_fcmpOGT", "create_icmpSGT"),
    "greater_equal": ("create_fcmpOGE", "create_icmpSGE"),
    "less_than": ("create_fcmpOLT", "create_icmpSLT"),
    "less_equal": ("create_fcmpOLE", "create_icmpSLE"),
    "equal": ("create_fcmpOEQ", "create_icmpEQ"),
    "not_equal": ("create_fcmpUNE", "create_icmpNE"),
}
# Those that numpy computes with as they are.
_FLOATS, _INTEGERS = ("fp16", "fp32", "fp64"), ("int32", "int64")

# Of two types: that of a sum, that of a comparison, and the two, which so keep their ids. Of a type
# and an axis: that with one axis more, and the type.
_wide_types: dict[tuple[int, int], tuple[Any, ...]] = {}
_expanded: dict[tuple[int, int], tuple[Any, Any]] = {}


def _quicker_on_two(interpreter: Any, core: Any, replace: Replace) -> None:
    """Tensors of one element type go to numpy as they are, which broadcasts by itself."""
    builder, semantic = interpreter.interpreter_builder, type(interpreter.interpreter_semantic)
    tensor, handle, expand = core.tensor, interpreter.TensorHandle, semantic.expand_dims

    def types_of(self: Any, lhs: Any, rhs: Any) -> tuple[Any, ...]:
        key = (id(lhs.type), id(rhs.type))
        found = _wide_types.get(key)
        if found is None:
            wide, _other = self.broadcast_impl_value(lhs, rhs)
            found = (wide.type, self._bool_like(wide), lhs.type, rhs.type)
            _wide_types[key] = found
        return found

    def quicker(name: str, of_floats: str, of_integers: str, which: int) -> None:
        usual = getattr(semantic, name)
        creates = {dtype: getattr(builder, of_floats) for dtype in _FLOATS}
        creates |= {dtype: getattr(builder, of_integers) for dtype in _INTEGERS}

        def operate(self: Any, lhs: Any, rhs: Any, *rest: Any, **named: Any) -> Any:
            if type(lhs) is tensor and type(rhs) is tensor and lhs.dtype is rhs.dtype:
                create = creates.get(lhs.dtype.name)
                if create is not None:
                    wide = types_of(self, lhs, rhs)[which]
                    return tensor(create(lhs.handle, rhs.handle), wide)
            return usual(self, lhs, rhs, *rest, **named)

        replace(semantic, name, operate)

    for which, names in enumerate((_ON_TWO, _COMPARISONS)):
        for name, (of_floats, of_integers) in names.items():
            quicker(name, of_floats, of_integers, which)

    def with_axis(self: Any, item: Any, axis: int) -> Any:
        if not hasattr(item.type, "sizes"):
            return expand(self, item, axis)
        key = (id(item.type), axis)
        if key not in _expanded:
            _expanded[key] = expand(self, item, axis).type, item.type
        wide, _same = _expanded[key]
        return tensor(handle(item.handle.data.reshape(wide.sizes), item.handle.dtype.scalar), wide)

    replace(semantic, "expand_dims", with_axis)

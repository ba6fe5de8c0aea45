"""The few functions of TensorFlow 1 that optimizers written for it call, in NumPy and at once.

Operations run in the order in which Python comes to them, so control dependencies have nothing to do;
`assign` and its kin change a variable in place. `float32`, and with it `to_float` and all slots, is the
type that `load` is told, FP64 included. As in TensorFlow a number of Python takes the type of the tensor
beside it, and no operation mixes types.
"""
import contextlib
import dataclasses
import importlib.util
import operator
import pathlib
import sys
import types
from unittest import mock

import numpy as np


@dataclasses.dataclass(frozen=True)
class DType:
    name: str

    @property
    def base_dtype(self):
        return self


class Shape(tuple):
    def as_list(self):
        return list(self)


class Tensor:
    """A value or, where something is assigned to it, a variable."""

    def __init__(self, values):
        self.values = np.asarray(values)

    @property
    def dtype(self):
        return DType(self.values.dtype.name)

    def get_shape(self):
        return Shape(self.values.shape)

    def __index__(self):
        return operator.index(self.values.item())


def values_of(x):
    return x.values if isinstance(x, Tensor) else x


def elementwise(function):
    """Of tensors of one type and numbers of Python."""
    def call(*operands):
        types_of = {x.dtype for x in operands if isinstance(x, Tensor)}
        result = Tensor(function(*map(values_of, operands)))
        assert types_of == {result.dtype}, (types_of, result.dtype)
        return result
    return call


for name, function in {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide}.items():
    forward = elementwise(function)
    setattr(Tensor, f"__{name}__", lambda x, y, forward=forward: forward(x, y))
    setattr(Tensor, f"__r{name}__", lambda x, y, forward=forward: forward(y, x))


def mean(x, axis=None, keepdims=False):
    return Tensor(np.mean(x.values, axis, keepdims=keepdims))


def assignment(function):
    def call(variable, value, use_locking=False):
        assert variable.dtype == value.dtype
        variable.values[...] = function(variable.values, value.values)
        return variable
    return call


class Optimizer:
    """What tf.train.Optimizer does for its subclasses."""

    def __init__(self, use_locking, name):
        self._use_locking = use_locking
        self._name = name
        self.slots = {}  # by variable, then by name

    def _zeros_slot(self, variable, name, _):
        self._get_or_make_slot(variable, Tensor(np.zeros_like(variable.values)), name, _)

    def _get_or_make_slot(self, variable, value, name, _):
        return self.slots.setdefault(variable, {}).setdefault(name, value)

    def get_slot(self, variable, name):
        return self.slots[variable][name]

    def _call_if_callable(self, x):
        return x() if callable(x) else x

    def _prepare(self):
        pass

    def apply_gradients(self, gradients_and_variables):
        self._create_slots([variable for _, variable in gradients_and_variables])
        self._prepare()
        for gradient, variable in gradients_and_variables:
            self._resource_apply_dense(gradient, variable)


def tensorflow(dtype):
    """What there is of the module; a training loop counts its `global_step`."""
    def converted(x, name=None):
        return x if isinstance(x, Tensor) else Tensor(np.asarray(x, dtype if isinstance(x, float) else None))

    def cast(x, to):
        assert x.dtype == to
        return x

    tf = types.SimpleNamespace(
        float32=DType(dtype.name), bfloat16=DType("bfloat16"), global_step=0,
        square=elementwise(np.square), sqrt=elementwise(np.sqrt), rsqrt=elementwise(lambda x: 1 / np.sqrt(x)),
        pow=elementwise(np.power), minimum=elementwise(np.minimum), maximum=elementwise(np.maximum),
        assign=assignment(lambda old, new: new), assign_add=assignment(np.add), assign_sub=assignment(np.subtract),
        reduce_mean=mean, reduce_max=lambda x, axis: Tensor(np.max(x.values, tuple(axis))),
        reshape=lambda x, shape: Tensor(np.reshape(x.values, shape)),
        expand_dims=lambda x, axis: Tensor(np.expand_dims(x.values, axis)),
        zeros=lambda shape, dtype=None: Tensor(np.zeros(shape, tf.float32.name)),
        convert_to_tensor=converted, cast=cast,
        to_float=lambda x: cast(x, tf.float32) if isinstance(x, Tensor) else converted(float(x)),
        group=lambda *updates: None,
        colocate_with=contextlib.nullcontext, control_dependencies=contextlib.nullcontext,
        train=types.SimpleNamespace(Optimizer=Optimizer, get_or_create_global_step=lambda: tf.global_step))
    tf.compat = types.SimpleNamespace(v1=tf)
    return tf


def load(path, dtype):
    """The module at a path, for which TensorFlow is `tensorflow(dtype)`, and that."""
    tf = tensorflow(np.dtype(dtype))
    quantization = types.SimpleNamespace(noise_from_step_num=lambda: None)
    common_layers = types.SimpleNamespace(cast_like=lambda x, y: tf.cast(x, y.dtype))
    spec = importlib.util.spec_from_file_location(f"numpy_{pathlib.Path(path).stem}", path)
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {
            "tensorflow": tf, "tensorflow.compat": tf.compat, "tensorflow.compat.v1": tf,
            "tensor2tensor.layers": types.SimpleNamespace(common_layers=common_layers),
            "tensor2tensor.utils": types.SimpleNamespace(quantization=quantization)}):
        spec.loader.exec_module(module)
    return module, tf

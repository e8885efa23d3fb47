"""zr_rehearse_values.py: what results of comparisons, logic and fills read as in `zr rehearse`. No kernel runs, so other results read as --fill;
these are computed on the host from what their operands read as. A loop that ends by a comparison ends, and torch.isfinite(x).all() is true."""
import ctypes
import itertools
import os
import sys

FILL = float(os.environ.get("ZR_EMULATOR_FILL", 0))
SMALL_BYTES = 1 << 16  # a larger tensor is taken for its first element, everywhere
ORDERS = ("lt", "le", "gt", "ge")
COMPARED = [f"{name}.{kind}" for name in ("eq", "ne", *ORDERS) for kind in ("Scalar", "Tensor")]
JOINED = ["bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_and_.Tensor", "bitwise_or_.Tensor", "bitwise_not", "logical_and", "logical_or", "logical_not"]
REDUCED = ["all", "all.dim", "any", "any.dim", "max", "min", "isin.Tensor_Tensor", "isin.Tensor_Scalar"]
CHECKED = [*COMPARED, *JOINED, *REDUCED]


class Values:
    def __init__(self, torch, device):
        self.torch, self.device = torch, device
        device.cuRehearsePeek.argtypes = device.cuRehearsePoke.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]
        device.cuRehearsePeek.restype = ctypes.c_bool
        device.cuRehearseUniform.argtypes = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64]

    def span(self, tensor):
        """Elements of the storage from the tensor's first to its last."""
        return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) + 1 if tensor.numel() else 0

    def peek(self, tensor):
        """Whether the program wrote the tensor or it was computed, and what it reads as, in the host's memory: as many elements, or one for all
        if they are too many."""
        if not tensor.is_cuda:
            return True, tensor
        count, shape, strides = self.span(tensor), tensor.shape, tensor.stride()
        if count * tensor.element_size() > SMALL_BYTES:
            count, shape, strides = 1, [1] * tensor.dim(), [1] * tensor.dim()
        host = self.torch.empty(count, dtype=tensor.dtype)
        known = self.device.cuRehearsePeek(tensor.data_ptr(), host.data_ptr(), host.nbytes)
        if not known:
            host.fill_(FILL)
        return known, host.as_strided(shape, strides)

    def read(self, tensor):
        return self.peek(tensor)[1]

    def has_order(self, tensors):
        """Which of two results of kernels is larger is a result of kernels."""
        return not all(map(self.is_plain, tensors)) or any(self.peek(each)[0] for each in tensors)

    def write(self, tensor, value):
        """The tensor reads as the value from now on, unless it is too long for other than one element everywhere."""
        count = self.span(tensor)
        value = value.detach().to(tensor.dtype)
        if count * tensor.element_size() <= SMALL_BYTES:
            host = self.torch.empty(count, dtype=tensor.dtype)
            if count > tensor.numel():
                self.device.cuRehearsePeek(tensor.data_ptr(), host.data_ptr(), host.nbytes)
            host.as_strided(tensor.shape, tensor.stride()).copy_(value.expand(tensor.shape))
            self.device.cuRehearsePoke(tensor.data_ptr(), host.data_ptr(), host.nbytes)
        elif value.numel() == 1 and 8 % tensor.element_size() == 0 and count == tensor.numel():
            pattern = value.reshape(1).repeat(8 // tensor.element_size()).view(self.torch.uint8)
            self.device.cuRehearseUniform(tensor.data_ptr(), count * tensor.element_size(), int.from_bytes(pattern.tolist(), sys.byteorder))

    def is_plain(self, value):
        return type(value) in (self.torch.Tensor, self.torch.nn.Parameter) and value.layout == self.torch.strided

    def settle(self, operator, result, arguments, others, read=None):
        """Computes a result of the device on the host. Tensors that are no memory (of FakeTensorMode, of functorch) are left alone."""
        tensors = [each for each in itertools.chain([result], arguments, others.values()) if isinstance(each, self.torch.Tensor)]
        if not tensors[0].is_cuda or not all(map(self.is_plain, tensors)):
            return
        try:
            values = read if read is not None else [self.read(each) if isinstance(each, self.torch.Tensor) else each for each in arguments]
            self.write(result, operator(*values, **others))
        except (RuntimeError, TypeError):
            pass


def prepare(torch, device):
    """Puts the operators behind autograd and before CUDA. Returns what has to live as long as torch."""
    values, library = Values(torch, device), torch.library.Library("aten", "IMPL")
    behind = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def put(name):
        packet, _, kind = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), kind or "default")

        def run(keys, *arguments, **others):
            first, read = next(each for each in arguments if isinstance(each, torch.Tensor)), None
            if kind == "Tensor" or packet.startswith("logical"):  # a number comes as one, although the operator takes tensors
                arguments = [each if isinstance(each, torch.Tensor) else torch.tensor(each, dtype=torch.result_type(first, each)) for each in arguments]
            if not first.is_cuda or first.dtype.is_complex:
                return operator.redispatch(keys & behind, *arguments, **others)
            if packet.endswith("_") and values.is_plain(first):  # before the kernel
                read = [values.read(each) if isinstance(each, torch.Tensor) and values.is_plain(each) else each for each in arguments]
            result = operator.redispatch(keys & behind, *arguments, **others)
            if kind != "Tensor" or packet not in ORDERS or values.has_order(arguments):
                values.settle(operator, result, arguments, others, read)
            return result

        library.impl(name, run, "BackendSelect", with_keyset=True)

    def fill(keys, tensor, value):
        result = torch.ops.aten.fill_.Scalar.redispatch(keys & behind, tensor, value)
        if tensor.is_cuda and values.is_plain(tensor):
            try:
                values.write(tensor, torch.tensor(value, dtype=tensor.dtype))
            except (RuntimeError, TypeError):
                pass
        return result

    def equal(keys, one, other):
        result = torch.ops.aten.equal.default.redispatch(keys & behind, one, other)
        if one.is_cuda and one.shape == other.shape and one.numel() and values.is_plain(one) and values.is_plain(other):
            try:
                return (values.read(one) == values.read(other)).all().item()  # either may be one element for all
            except RuntimeError:
                pass
        return result

    def is_finite(tensor):
        result = torch.ops.aten.isfinite.default.decompose(tensor)
        values.settle(torch.isfinite, result, (tensor,), {})
        return result

    for name in CHECKED:
        put(name)
    library.impl("fill_.Scalar", fill, "BackendSelect", with_keyset=True)
    library.impl("equal", equal, "BackendSelect", with_keyset=True)
    for key in ("CUDA", "AutogradCUDA"):  # made of others, so autograd knows none of it
        library.impl("isfinite", is_finite, key)
    return library

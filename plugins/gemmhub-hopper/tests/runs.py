"""Products on a fake device, with operands in host memory."""

from __future__ import annotations

import numpy as np
from fakes import FakeMemory, Home
from products import loaded, stored

from gemmhub.errors import KernelError

HOME = Home()


def address(buffer):
    return buffer.ctypes.data


class Run:
    """A product's operands in host memory, and its kernel on a fake device."""

    def __init__(self, product, home=HOME, seed=0):
        self.product, self.home = product, home
        self.values = product.data(seed)
        self.exact = product.exact(*self.values)
        self.launch = product.launch(home.backend())
        memory = FakeMemory(home)
        a, b, c, bias = self.values

        def put(x, order="row", offset=0):
            if x is None:
                return None
            data = stored(x, order)
            buffer = memory.empty(data.size + 256)
            buffer[offset : offset + data.size] = data
            return buffer

        self.scales = {name: self.place(x) for name, x in product.scales().items()}
        self.a, self.b, self.c, self.bias = put(a, product.a), put(b, product.b), put(c, product.d), put(bias)
        self.dtype = product.problem.out.dtype
        self.offset = product.offset * self.dtype.itemsize
        self.nbytes = self.exact.size * self.dtype.itemsize
        self.out = memory.empty(self.nbytes + 512)

    def place(self, scales):
        """Return memory with ``scales`` as they are."""
        buffer = FakeMemory(self.home).empty(scales.nbytes + 256)
        np.ndarray(scales.shape, np.float32, buffer, 0, scales.strides)[...] = scales
        return buffer

    def __call__(self):
        """Return the result; assert that nothing outside it was written."""
        p = self.product
        self.out[:] = 0xFF
        others = {name: address(x) for name, x in (("c", self.c), ("bias", self.bias)) if x is not None}
        others |= {name: address(x) for name, x in self.scales.items()}
        out = address(self.out) + self.offset
        self.launch.run(address(self.a), address(self.b), out, p.alpha, p.beta, 0, **others)
        assert (self.out[: self.offset] == 0xFF).all()
        assert (self.out[self.offset + self.nbytes :] == 0xFF).all()
        data = self.out[self.offset : self.offset + self.nbytes].copy()
        return loaded(data, self.dtype, p.batch, *self.exact.shape[-2:], p.d)

    def give(self, a, b):
        """Replace the operands by ``a`` (m, k) and ``b`` (k, n)."""
        for buffer, x, order in ((self.a, a, self.product.a), (self.b, b, self.product.b)):
            data = stored(x, order)
            buffer[: data.size] = data

    def of(self, a, b):
        """Return the product of ``a`` (m, k) and ``b`` (k, n); assert that the emulator reports no fault."""
        self.give(a, b)
        self.home.cuda.complaints.clear()
        result = self()
        assert self.home.cuda.complaints == []
        return result

    def check(self):
        self.home.cuda.complaints.clear()
        wrong = self.product.wrong(self(), self.exact)
        assert not wrong.any(), f"{wrong.sum()} wrong, the first at {np.argwhere(wrong)[0]}"


def detected(run, interleavings):
    """Whether one of so many interleavings ends in an error of the emulator or in a wrong result."""
    for _ in range(interleavings):
        try:
            wrong = run.product.wrong(run(), run.exact).any()
        except (AssertionError, KernelError):
            return True
        if wrong:
            return True
    return False

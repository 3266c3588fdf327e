"""GPUs as data: what each can do at most, for roofs over a kernel's counters.

Tensor rates are dense, with sums in f32 (i32 for integers), at the clock that the maker's sheet
assumes. Sizes are those that the device reports.
"""

from __future__ import annotations

from collections.abc import Mapping

from kdsl_core.errors import ArgumentError
from kdsl_core.records import dataclass

_TERA = 1e12
_KIB, _MIB = 1 << 10, 1 << 20
_WARP = 32
_REGISTERS = 65536
_REGISTER_UNIT = 256  # registers are handed to a warp in units of so many
_RESERVED = 1 << 10  # bytes of shared memory that the system takes of each block


@dataclass(frozen=True)
class Device:
    """One GPU.

    Units: `tensor` and `plain` in floating-point operations a second by element type (the tensor
    core's, and all others'), `dram` in bytes a second, `clock` in Hz, sizes in bytes. `issue` holds
    for some pipes the warps' instructions that a multiprocessor executes in a clock.
    """

    name: str
    target: str
    sms: int
    clock: float
    dram: float
    l2: int
    shared: int
    threads: int
    blocks: int
    tensor: Mapping[str, float]
    plain: Mapping[str, float]
    source: str

    @property
    def issue(self) -> Mapping[str, float]:
        """Instructions of warps in a clock of a multiprocessor, by pipe; "" is the issue itself."""
        return {"": 4, "alu": 2, "lsu": 1, "xu": 0.5}

    def occupancy(self, registers: int, threads: int, shared: int) -> tuple[int, str]:
        """(blocks that fit on a multiprocessor, what limits them) for a block's demands.

        Units: `registers` per thread, `shared` in bytes.
        """
        warps = -(-threads // _WARP)
        per_warp = -(-registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
        limits = {
            "blocks": self.blocks,
            "threads": self.threads // (warps * _WARP),
            "registers": _REGISTERS // (per_warp * warps) if registers else self.blocks,
            "shared memory": self.shared // (shared + _RESERVED),
        }
        least = min(limits, key=lambda name: limits[name])
        return limits[least], least


def _tensor(f16: float, tf32: float, f8: float, i8: float, f64: float) -> dict[str, float]:
    """Rates in TFLOP/s by element type as PTX spells it."""
    rates = {"f16": f16, "bf16": f16, "tf32": tf32, "e4m3": f8, "e5m2": f8, "s8": i8, "u8": i8}
    return {name: rate * _TERA for name, rate in {**rates, "f64": f64}.items() if rate}


def _plain(f32: float, f16: float, f64: float) -> dict[str, float]:
    return {"f32": f32 * _TERA, "f16": f16 * _TERA, "bf16": f16 * _TERA, "f64": f64 * _TERA}


def _hopper(name: str, dram: float, l2: int, source: str) -> Device:
    """H100 and H200 differ in their memory."""
    return Device(
        name=name, target="sm_90a", sms=132, clock=1.83e9, dram=dram, l2=l2,
        shared=228 * _KIB, threads=2048, blocks=32,
        tensor=_tensor(989.4, 494.7, 1978.9, 1978.9, 66.9), plain=_plain(66.9, 133.8, 33.5),
        source=f"{source}, H100 architecture white paper v1.04; L2 as reported",
    )  # fmt: skip


DEVICES = (
    _hopper("NVIDIA H200", 4.8e12, 60 * _MIB, "NVIDIA H200 datasheet (SXM)"),
    _hopper("NVIDIA H100", 3.35e12, 50 * _MIB, "NVIDIA H100 datasheet (SXM5 80 GB)"),
    Device(
        name="NVIDIA A100", target="sm_80", sms=108, clock=1.41e9, dram=2.039e12, l2=40 * _MIB,
        shared=164 * _KIB, threads=2048, blocks=32,
        tensor=_tensor(312, 156, 0, 624, 19.5), plain=_plain(19.5, 78, 9.7),
        source="NVIDIA A100 datasheet (SXM4 80 GB), A100 architecture white paper",
    ),
    Device(
        name="NVIDIA GeForce RTX 4090", target="sm_89", sms=128, clock=2.52e9, dram=1.008e12,
        l2=72 * _MIB, shared=100 * _KIB, threads=1536, blocks=24,
        tensor=_tensor(165.2, 82.6, 330.3, 660.6, 0), plain=_plain(82.6, 82.6, 1.29),
        source="NVIDIA Ada GPU architecture white paper v2.02, appendix A",
    ),
    Device(
        name="NVIDIA B200", target="sm_100a", sms=148, clock=1.965e9, dram=8e12, l2=126 * _MIB,
        shared=228 * _KIB, threads=2048, blocks=32,
        tensor=_tensor(2250, 1100, 4500, 4500, 40), plain=_plain(80, 160, 40),
        source="NVIDIA Blackwell architecture brief (HGX B200); sizes and clock as reported",
    ),
)  # fmt: skip
"""The devices that are known, the first being the default."""


def device_of(name: str | Device) -> Device:
    """The device that a name, or a part of one, means: "NVIDIA H200" or "h200".

    Raises: ArgumentError K541 when none or several are meant.
    """
    if isinstance(name, Device):
        return name
    found = [device for device in DEVICES if name.lower() in device.name.lower()]
    if len(found) == 1:
        return found[0]
    known = ", ".join(repr(device.name) for device in found or DEVICES)
    raise ArgumentError(
        f"{name!r} names {'no device' if not found else 'several devices'} that kdsl has data of",
        code="K541",
        fix=f"name one of {known}",
    )

"""Opening a device while something else goes on: the driver takes a fifth of a second for it.

It imports neither NumPy nor the rest of kdsl, so that their imports are among what goes on.
"""

from __future__ import annotations

import ctypes
import threading

LIBRARY = "libcuda.so.1"
_guard = threading.Lock()
_openings: dict[int, threading.Thread] = {}


def open_device(index: int = 0) -> None:
    """Begin to initialise the driver and to make the context of device `index`, and return.

    Whoever needs the driver first waits for the rest of it. Called before a program's other
    imports, it hides nearly all of the time that the driver takes. The context is the primary one,
    which torch and the CUDA runtime use too; flags for it are to be set before. Where there is no
    driver or no such device nothing happens: the first use says so.

    Threads: safe; the work is done in a thread of its own, without Python's lock.
    """
    with _guard:
        if index not in _openings:
            made = threading.Thread(target=_open, args=(index,), name="kdsl-open", daemon=True)
            _openings[index] = made
            made.start()


def wait() -> None:
    """Return when no device is being opened any more."""
    for opening in list(_openings.values()):
        opening.join()


def _open(index: int) -> None:
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), index) == 0:
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)  # for the process's life

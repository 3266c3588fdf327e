"""Atoms of Ampere (and the ldmatrix of Turing), on every chip that kdsl knows."""

from __future__ import annotations

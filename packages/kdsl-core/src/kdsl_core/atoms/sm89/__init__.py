"""Atoms that came with Ada: the 8-bit floating-point tensor cores."""

from __future__ import annotations

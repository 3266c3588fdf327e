"""Atoms that came with Hopper."""

from __future__ import annotations

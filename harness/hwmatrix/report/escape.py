"""Escaping of untrusted text in reports: the functions of :mod:`hwmatrix.basics.escape`, shared with the error reports."""

from __future__ import annotations

from hwmatrix.basics.escape import code, fence, finalize, html, md, plain, short, visible

__all__ = ["code", "fence", "finalize", "html", "md", "plain", "short", "visible"]

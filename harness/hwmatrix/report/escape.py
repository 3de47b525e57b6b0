"""What reports print of foreign text: the functions of :mod:`hwmatrix.basics.escape`, which the reports of errors share."""

from __future__ import annotations

from hwmatrix.basics.escape import code, fence, finalize, html, md, plain, short, visible

__all__ = ["code", "fence", "finalize", "html", "md", "plain", "short", "visible"]

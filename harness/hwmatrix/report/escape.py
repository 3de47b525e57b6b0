"""What reports print of foreign text: the functions of :mod:`hwmatrix.records.escape`, which the reports of errors share."""

from __future__ import annotations

from hwmatrix.records.escape import code, fence, finalize, html, md, plain, short, visible

__all__ = ["code", "fence", "finalize", "html", "md", "plain", "short", "visible"]

"""The environment of processes that run models without a container: only variables that are known to be needed and to hold no secret.

A container gets no variables of this machine. A virtual environment, or this interpreter, gets those listed here (docs/security.md).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ALLOWED: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "PYTHON*"),
    *("CC", "CXX", "CUDA_*", "NVIDIA_*", "HIP_*", "HSA_*", "ROCR_*", "ROCM_*", "GPU_DEVICE_ORDINAL", "DISPLAY"),
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "ONEDNN_*", "DNNL_*", "PYTORCH_*", "TORCH_*", "TORCHINDUCTOR_*", "TOKENIZERS_*"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HWMATRIX_*"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
)
"""The names of these variables; ``*`` stands for any ending."""
_MATCHES: Final = re.compile("|".join(re.escape(name).replace(r"\*", r"\w*") for name in ALLOWED))
_LOGIN: Final = re.compile(r"[^/@\s]*:[^/@\s]*@|://[^/@\s]+@")
"""Matches a user or a password in an address, as in proxy settings, with or without a scheme."""


def for_models(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process running a stranger's model may see: the allowed ones, without logins in their values."""
    return {name: value for name, value in environment.items() if _MATCHES.fullmatch(name) and not _LOGIN.search(value)}

"""Shortcuts for the exporters: work that does not change a graph is left out. Tests compare the files with those of the long way."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


@contextlib.contextmanager
def of_tracing() -> Iterator[None]:
    """The shortcuts for torch.export and for PyTorch's passes after it."""
    with sharing_sources(), compiling_what_is_read():
        yield


@contextlib.contextmanager
def of_onnx() -> Iterator[None]:
    """The shortcuts for an export to ONNX."""
    with of_tracing(), trying_rules_of_the_operator():
        yield


@contextlib.contextmanager
def sharing_sources() -> Iterator[None]:
    """Let new nodes share the records of the nodes that they were made from.

    Each pass copies the whole history of each node, which grows with every pass, and which nothing changes (torch 2.13): a seventh of the
    time that it takes to lower a small BERT to ExecuTorch.
    """
    try:
        from torch.fx.traceback import NodeSource
    except ImportError:  # a PyTorch that keeps no such records
        yield
        return

    before = vars(NodeSource).get("__deepcopy__")
    NodeSource.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]  # noqa: ARG005 - the protocol of copy
    try:
        yield
    finally:
        if before is None:
            del NodeSource.__deepcopy__  # type: ignore[attr-defined]
        else:
            NodeSource.__deepcopy__ = before  # type: ignore[attr-defined]


@contextlib.contextmanager
def compiling_what_is_read() -> Iterator[None]:
    """Let graphs become Python code when they are called or their code is read, and not after every change of a pass.

    For a small BERT on ExecuTorch, 30 of 1,400 are needed (torch 2.13, ExecuTorch 1.5), which saves a fifth of the time that lowering
    takes. PyTorch does the same in its own compiler, in a class of its own (``torch.fx._lazy_graph_module``) that exporters do not use.
    """
    import torch

    graphs, compiled = torch.fx.GraphModule, torch.fx.GraphModule.recompile

    class Forward:
        """The method of a graph that has no code yet. Reading it compiles, since exporters read the names of its arguments."""

        def __get__(self, module: torch.fx.GraphModule | None, owner: type) -> Any:
            if module is None:
                return self
            compiled(module)
            return module.forward

    class Code:
        """The code of a graph that has none yet."""

        def __get__(self, module: torch.fx.GraphModule | None, owner: type) -> Any:
            return self if module is None else compiled(module).src

    def changed(self: torch.fx.GraphModule) -> None:
        codegen = self._graph._codegen  # noqa: SLF001 - as in the method that this replaces
        if isinstance(codegen, torch.fx.graph._PyTreeCodeGen):  # noqa: SLF001 - as above
            self._in_spec, self._out_spec = codegen.pytree_info.in_spec, codegen.pytree_info.out_spec
        vars(self).pop("_code", None)
        type(self).forward = Forward()  # type: ignore[assignment]  # each graph has a class of its own

    graphs.recompile, graphs._code = changed, Code()  # type: ignore[method-assign,assignment] # noqa: SLF001 - as above
    try:
        yield
    finally:
        graphs.recompile = compiled  # type: ignore[method-assign]
        delattr(graphs, "_code")


@contextlib.contextmanager
def trying_rules_of_the_operator() -> Iterator[None]:
    """Let ONNX Script try only those of its rules at a node whose pattern ends with that node's operator.

    At all other nodes its matcher finds nothing, but lists the whole graph first for each rule that ends with several nodes
    (onnxscript 0.7).
    """
    from onnxscript.rewriter import RewriteRule

    rules: Any = RewriteRule  # they have a pattern, which is not public
    tried = rules.try_rewrite

    def tried_if_it_may_match(self: Any, model: Any, graph: Any, node: Any, *, verbose: int | None = None, tracer: Any = None) -> Any:
        try:
            ends_with = self._target_pattern.output_nodes[0].op_identifier()  # None: any operator, or one of several
        except AttributeError:  # another version of ONNX Script
            ends_with = None
        if tracer is None and ends_with is not None and ends_with[:2] != (node.domain, node.op_type):
            return None
        return tried(self, model, graph, node, verbose=verbose, tracer=tracer)

    rules.try_rewrite = tried_if_it_may_match
    try:
        yield
    finally:
        rules.try_rewrite = tried

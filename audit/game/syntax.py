"""The syntax of a definition without its texts, and the names to which it refers."""

import ast
from collections.abc import Callable
from typing import Any

from audit.game.sources import Import, Module

_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores", "type_params"})
# Decorators that do not read annotations.
_USUAL_DECORATORS = {
    *("property", "cached_property", "staticmethod", "classmethod", "abstractmethod"),
    *("cache", "lru_cache", "functools", "wraps", "memoize", "numerics"),
    *("contextmanager", "contextlib", "overload", "override", "final", "torch"),
}


class Syntax:
    """The syntax of a statement as text, and what it refers to."""

    def __init__(self, module: Module, *, follow_annotations: bool = False) -> None:
        self.tokens: list[str] = []
        self.chains: set[tuple[str, ...]] = set()  # dotted names, from the first name on
        self.changed: set[tuple[str, ...]] = set()  # those whose content it changes
        self.attributes: set[str] = set()
        self.bound: set[str] = set()
        self.imports: dict[str, list[Import]] = {}
        self.modules: set[str] = set()  # dotted names in quotes
        self._module = module
        self._follow_annotations = follow_annotations

    def read(self, node: ast.AST) -> None:
        """Adds a node with everything below it."""
        read = _READERS.get(type(node))
        if read is None:
            self._fields(node)
        else:
            read(self, node)

    def _fields(self, node: ast.AST, *names: str) -> None:
        tokens, kind = self.tokens, type(node)
        tokens.append(f"({kind.__name__}")
        for name in names or kind._fields:
            value = getattr(node, name, None)
            if value is None or value == [] or name in _IGNORED_FIELDS:
                continue
            tokens.append(name)
            for child in value if type(value) is list else (value,):
                if isinstance(child, ast.AST):
                    self.read(child)
                else:
                    tokens.append(repr(child))
        tokens.append(")")

    def _expression(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # not a docstring
            self._fields(node)

    def _arg(self, node: ast.arg) -> None:
        self.tokens.append(node.arg)
        self.bound.add(node.arg)
        self._annotation(node.annotation)

    def _annotated(self, node: ast.AnnAssign) -> None:
        self._fields(node, "target", "value")
        self._annotation(node.annotation)

    def _subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.changed.add(dotted_name(node.value))
        self._fields(node)

    def _augmented(self, node: ast.AugAssign) -> None:
        self.changed.add(dotted_name(node.target))
        self._fields(node)

    def _global(self, node: ast.Global) -> None:
        self.changed.update((name,) for name in node.names)

    def _assert(self, node: ast.Assert) -> None:
        self._fields(node, "test")

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        self._module.add_imports(node, self.imports)
        self._fields(node)

    def _class(self, node: ast.ClassDef) -> None:
        self.bound.add(node.name)
        self._fields(node)

    def _binding(self, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self.bound.add(node.name)
        self._fields(node)

    def _pattern(self, node: ast.MatchClass) -> None:
        self.attributes.update(node.kwd_attrs)
        self._fields(node)

    def _name(self, node: ast.Name) -> None:
        self.tokens.append(node.id)
        if isinstance(node.ctx, ast.Load):
            self.chains.add((node.id,))
        else:
            self.bound.add(node.id)

    def _attribute(self, node: ast.Attribute) -> None:
        attributes = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            attributes.append(root.attr)
            root = root.value
        self.tokens.append(f".{'.'.join(attributes)}")
        if isinstance(root, ast.Name):
            self.tokens.append(root.id)
            self.chains.add((root.id, *reversed(attributes)))
            if not isinstance(node.ctx, ast.Load):
                self.changed.add((root.id, *reversed(attributes[1:])))
        else:
            self.attributes.update(attributes)
            self.read(root)

    def _constant(self, node: ast.Constant) -> None:
        self.tokens.append(repr(node.value))
        if isinstance(node.value, str):
            if node.value.isidentifier():
                self.attributes.add(node.value)
            elif "." in node.value and all(map(str.isidentifier, node.value.split("."))):
                self.modules.add(node.value)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Adds a function; its annotations are part of it only if a decorator may read them."""
        before = self._follow_annotations
        roots = {root_of(decorator) for decorator in node.decorator_list}
        self._follow_annotations |= bool(roots - _USUAL_DECORATORS)
        self.bound.add(node.name)
        self._fields(node, "name", "args", "body", "decorator_list")
        self._annotation(node.returns)
        self._follow_annotations = before

    def _annotation(self, node: ast.expr | None) -> None:
        if node is not None and self._follow_annotations:
            self.read(node)

    def _raise(self, node: ast.Raise) -> None:
        self.tokens.append("(Raise")
        if isinstance(node.exc, ast.Call):
            self.read(node.exc.func)
            for argument in (*node.exc.args, *(keyword.value for keyword in node.exc.keywords)):
                self._without_text(argument)
        elif node.exc is not None:
            self.read(node.exc)
        if node.cause is not None:
            self.read(node.cause)
        self.tokens.append(")")

    def _without_text(self, node: ast.expr) -> None:
        """Adds an argument of an exception, without text and without values that are only shown."""
        match node:
            case ast.Constant(str()):
                return
            case ast.JoinedStr(values):
                for value in values:
                    if isinstance(value, ast.FormattedValue) and _calls(value):
                        self.read(value.value)
            case _:
                self.read(node)


_READERS: dict[type[ast.AST], Callable[[Syntax, Any], None]] = {
    ast.Expr: Syntax._expression,
    ast.Name: Syntax._name,
    ast.Attribute: Syntax._attribute,
    ast.Constant: Syntax._constant,
    ast.FunctionDef: Syntax.function,
    ast.AsyncFunctionDef: Syntax.function,
    ast.ClassDef: Syntax._class,
    ast.arg: Syntax._arg,
    ast.AnnAssign: Syntax._annotated,
    ast.Subscript: Syntax._subscript,
    ast.AugAssign: Syntax._augmented,
    ast.Global: Syntax._global,
    ast.Assert: Syntax._assert,
    ast.Raise: Syntax._raise,
    ast.Import: Syntax._import,
    ast.ImportFrom: Syntax._import,
    ast.ExceptHandler: Syntax._binding,
    ast.MatchAs: Syntax._binding,
    ast.MatchStar: Syntax._binding,
    ast.MatchClass: Syntax._pattern,
}


def _calls(node: ast.AST) -> bool:
    kinds = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
    return any(isinstance(child, kinds) for child in ast.walk(node))


def root_of(node: ast.expr) -> str:
    """The first name of a decorator, a callee or a base: `a` of `a.b[c](d)`."""
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value) | ast.Subscript(value):
                node = value
            case ast.Call(function):
                node = function
            case _:
                return ""
    return node.id


def dotted_name(node: ast.expr) -> tuple[str, ...]:
    """An expression as a dotted name; only its first name if it is more than that."""
    text = ast.unparse(node.value if isinstance(node, ast.Subscript) else node)
    return tuple(text.split(".")) if text.replace(".", "").isidentifier() else (root_of(node),)

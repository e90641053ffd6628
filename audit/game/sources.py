"""Sources of Python packages, parsed at first use, without an import.

Of a definition, this module gives the syntax without its texts, and the names to which it refers.
"""

import ast
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPOUND = (ast.If, ast.Try, ast.TryStar, ast.With, ast.For, ast.While, ast.Match)
# Decorators, calls and imports at the top level, found without parsing.
_DECORATOR = re.compile(rb"^@([A-Za-z_][\w.]*)", re.MULTILINE)
_CALL = re.compile(rb"^([A-Za-z_][\w.]*)\(", re.MULTILINE)
_FROM = re.compile(rb"^from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE)
_SUBCLASS = re.compile(rb"^class[ \t]+\w+[^(\n]*\(([^)]*)\)", re.MULTILINE)
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores", "type_params"})
# Decorators that do not read annotations.
_USUAL_DECORATORS = {
    *("property", "cached_property", "staticmethod", "classmethod", "abstractmethod"),
    *("cache", "lru_cache", "functools", "wraps", "memoize", "numerics"),
    *("contextmanager", "contextlib", "overload", "override", "final", "torch"),
}


DEFINITIONS = (*FUNCTIONS, ast.ClassDef)


@dataclass(frozen=True)
class Import:
    """An imported name; without `name`, the module itself."""

    module: str
    name: str = ""


class Module:
    """A module's source: what its top level defines, imports and executes."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.text = path.read_bytes()
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.imports: dict[str, list[Import]] = {}
        self.starred: list[str] = []
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.executed: list[ast.stmt] = []
        self._is_parsed = False

    def parse(self) -> "Module":
        """Reads the top level, once."""
        if not self._is_parsed:
            self._is_parsed = True
            self._collect(ast.parse(self.text).body)
        return self

    def _collect(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.Import() | ast.ImportFrom():
                    self.add_imports(statement, self.imports)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    self._define(statement.name, statement)
                case ast.Expr(ast.Constant()) | ast.Pass():
                    pass
                case ast.If(test) if _is_for_type_checkers(test):
                    self._collect(statement.orelse)
                case _:
                    self._collect_other(statement)

    def _collect_other(self, statement: ast.stmt) -> None:
        names = [
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        for name in names:
            self._define(name, statement)
        if isinstance(statement, _COMPOUND):
            for node in ast.walk(statement):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    self.add_imports(node, self.imports)
                elif isinstance(node, DEFINITIONS):
                    self._define(node.name, statement)
        if not names or isinstance(statement, _COMPOUND):
            self.executed.append(statement)

    def label(self, statement: ast.stmt) -> str:
        """A name of a statement that does not depend on other statements of the module."""
        names = [name for name, statements in self.definitions.items() if statement in statements]
        return ", ".join(names)

    def _define(self, name: str, statement: ast.stmt) -> None:
        statements = self.definitions.setdefault(name, [])
        if statement not in statements:
            statements.append(statement)

    def add_imports(
        self, statement: ast.Import | ast.ImportFrom, names: dict[str, list[Import]]
    ) -> None:
        """Adds the names that an import statement of this module binds."""
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                top = alias.name.partition(".")[0]
                module = alias.name if alias.asname else top
                names.setdefault(alias.asname or top, []).append(Import(module))
            return
        packages = self.package.split(".") if statement.level else []
        packages = packages[: len(packages) - statement.level + 1] if statement.level else packages
        module = ".".join([*packages, *([statement.module] if statement.module else [])])
        for alias in statement.names:
            if alias.name == "*":
                self.starred.append(module)
            else:
                names.setdefault(alias.asname or alias.name, []).append(Import(module, alias.name))

    @cached_property
    def called_at_import(self) -> frozenset[str]:
        """The names that decorators and calls at the top level begin with, found by text."""
        names = (*_DECORATOR.findall(self.text), *_CALL.findall(self.text))
        return frozenset(name.decode() for name in names)

    def defines_in_text(self, name: str) -> bool:
        """Whether the text may define this name at the top level."""
        pattern = (
            rf"^(?:def |async def |class |){re.escape(name)}\b(?![.(\w])|^(?:def|class) {name}\b"
        )
        return re.search(pattern.encode(), self.text, re.MULTILINE) is not None

    def source_in_text(self, name: str) -> str | None:
        """The module from which the text imports this name at the top level."""
        return self._imported_in_text.get(name)

    @cached_property
    def _imported_in_text(self) -> dict[str, str]:
        return {
            word: module.decode()
            for module, names in _FROM.findall(self.text)
            for word in re.findall(r"\w+", names.decode())
        }

    @cached_property
    def bases_of_classes(self) -> frozenset[str]:
        """All words between the parentheses of the class statements at the top level."""
        words = b" ".join(_SUBCLASS.findall(self.text))
        return frozenset(re.findall(r"\w+", words.decode()))

    @cached_property
    def global_names(self) -> frozenset[str]:
        """The variables that functions of this module assign."""
        lines = re.findall(rb"^\s+global\s+([^\n#;]+)", self.text, re.MULTILINE)
        return frozenset(re.findall(r"\w+", b" ".join(lines).decode()))


def _is_for_type_checkers(test: ast.expr) -> bool:
    """Whether a condition holds for type checkers only, or in a script only."""
    if isinstance(test, ast.Compare):
        return isinstance(test.left, ast.Name) and test.left.id == "__name__"
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


class Sources:
    """Modules by name, in some folders; the first folder that has a module provides it.

    Args:
        root: the folder of the project's packages.
        packages: the packages in this folder that belong to the project.
        others: further folders, from which every module counts.
    """

    def __init__(self, root: Path, packages: Sequence[str], others: Sequence[Path] = ()) -> None:
        self._root, self._packages, self._others = root, tuple(packages), tuple(others)
        self._modules: dict[str, Module | None] = {}

    def is_of_project(self, name: str) -> bool:
        """Whether a module belongs to the project's packages."""
        return name.partition(".")[0] in self._packages

    def find(self, name: str) -> Module | None:
        """The module of this name; None if it is not in the folders."""
        if name not in self._modules:
            self._modules[name] = self._found(name)
        return self._modules[name]

    def _found(self, name: str) -> Module | None:
        components = name.split(".")
        roots = (self._root,) if components[0] in self._packages else self._others
        for root in roots:
            folder = root.joinpath(*components)
            for path in (folder / "__init__.py", folder.with_name(f"{components[-1]}.py")):
                if path.is_file():
                    return Module(name, path)
        return None

    def all_of_project(self) -> Iterator[Module]:
        """Every module of the project, in alphabetical order."""
        for package in self._packages:
            for folder, folders, files in os.walk(self._root / package):
                folders.sort()
                components = Path(folder).relative_to(self._root).parts
                for file in sorted(files):
                    if file.endswith(".py"):
                        stem = file.removesuffix(".py")
                        names = components if stem == "__init__" else (*components, stem)
                        module = self.find(".".join(names))
                        if module is not None:
                            yield module


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

"""Sources of Python packages, parsed at first use, without an import."""

import ast
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
_COMPOUND = (ast.If, ast.Try, ast.TryStar, ast.With, ast.For, ast.While, ast.Match)
# Decorators, calls and imports at the top level, found without parsing.
_DECORATOR = re.compile(rb"^@([A-Za-z_][\w.]*)", re.MULTILINE)
_CALL = re.compile(rb"^([A-Za-z_][\w.]*)\(", re.MULTILINE)
_FROM = re.compile(rb"^from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE)
_SUBCLASS = re.compile(rb"^class[ \t]+\w+[^(\n]*\(([^)]*)\)", re.MULTILINE)


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

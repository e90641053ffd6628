"""The code that a function can reach, and its digests, computed from the sources.

A stored trial is valid only with the code that played it. This module finds that code: starting
from a function, it follows names through the syntax trees of the sources. The grain is the
function or method, so that a change elsewhere in the same file does not matter. A digest covers
syntax, not text: comments, docstrings, annotations, line breaks and the texts of exceptions do not
change it. Nothing is imported, and the result is the same in every process and on every machine.

The result contains everything that can run, and more, by these rules:

1. A name leads to its definition in the module, through imports and re-exports. A local variable
   with the name of a module's definition counts as that definition.
2. An attribute of an unknown object, such as `layer.backward`, leads to the methods of this name
   in all reachable classes. An identifier in quotes counts as an attribute, for `getattr`.
3. A class is reachable if reachable code names it, because only then can an instance exist. It
   brings its bases, its class variables and its special methods, and all methods if a base comes
   from another library, which may call any of them. If a class sees its subclasses
   (`__init_subclass__`, `__subclasses__`), it brings them.
4. A variable of a module brings its statement, and a module that is used as a value brings all its
   definitions. Reachable code brings the statements that its module executes at import.
5. A decorated definition in any module is reachable if its decorator, or a function that the
   decorator calls, changes a reachable variable or belongs to one: it may register something.
6. C sources next to a reachable module are reachable; compiled files if there is no source.

Annotations are followed only where code may read them: at functions with an unusual decorator, and
at the function from which the search starts. Three things are not found: methods that only another
library calls, on objects of a class without a base from there; names that code composes; and
changes of a variable that was passed on under another name.

The digest's format does not depend on the version of Python. It changes with the version only if
the versions parse a source differently; a stored audit is then refused, never mixed. The versions
of other libraries are not part of it.
"""

import ast
import contextlib
import gc
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from audit.game.sources import (
    DEFINITIONS,
    FUNCTIONS,
    Import,
    Module,
    Sources,
    Syntax,
    dotted_name,
    root_of,
)

# Bases from these modules call no other methods of a subclass than special ones.
_PASSIVE_MODULES = ("typing", "typing_extensions", "abc", "collections.abc")
_COMMENT_OF_C = re.compile(rb'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_CHANGING_METHODS = {
    *("add", "append", "appendleft", "extend", "insert", "register", "setdefault", "update"),
    *("clear", "discard", "pop", "popitem", "remove", "reverse", "sort"),
}
# A decorator may change a variable itself, or through this many calls of functions.
_CALLS_FOLLOWED = 1


@dataclass(frozen=True)
class _Definition:
    """A definition at the top level of a module."""

    module: Module
    name: str

    @property
    def statements(self) -> list[ast.stmt]:
        return self.module.definitions[self.name]

    @property
    def is_variable(self) -> bool:
        return not any(isinstance(statement, DEFINITIONS) for statement in self.statements)

    def is_changed(self, is_target: bool, attributes: Sequence[str]) -> bool:
        """Whether a statement that uses a variable changes it: assigns to it, or calls a method."""
        if is_target or (attributes and attributes[0] in _CHANGING_METHODS):
            return True
        values = (getattr(statement, "value", None) for statement in self.statements)
        names = [root_of(value.func) for value in values if isinstance(value, ast.Call)]
        top = self.module.name.partition(".")[0]
        return bool(attributes) and any(
            name in self.module.definitions
            or any(
                imported.module.startswith(top) for imported in self.module.imports.get(name, ())
            )
            for name in names
        )


class _Names:
    """Finds what a name refers to, through imports."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def lookup(
        self, module: Module, name: str, seen: frozenset[tuple[str, str]] = frozenset()
    ) -> list["_Definition | Module"]:
        """The definitions, or the submodule, to which a name leads in a module."""
        if (module.name, name) in seen:
            return []
        seen |= {(module.name, name)}
        module.parse()
        results: list[_Definition | Module] = []
        if name in module.definitions:
            results.append(_Definition(module, name))
        for imported in module.imports.get(name, ()):
            results += self.imported(imported, seen)
        if not results and module.package == module.name:
            submodule = self._sources.find(f"{module.name}.{name}")
            results += [submodule] if submodule else []
        if not results:
            for starred in module.starred:
                source = self._sources.find(starred)
                results += self.lookup(source, name, seen) if source else []
        if not results and name not in module.imports and "__getattr__" in module.definitions:
            results.append(_Definition(module, "__getattr__"))
        return results

    def imported(
        self, imported: Import, seen: frozenset[tuple[str, str]] = frozenset()
    ) -> list["_Definition | Module"]:
        """What an import statement binds; nothing if it is of another library."""
        module = self._sources.find(imported.module)
        if module is None:
            return []
        return self.lookup(module, imported.name, seen) if imported.name else [module]

    def follow(
        self, module: Module, chain: Sequence[str], local: dict[str, list[Import]]
    ) -> Iterator[tuple["_Definition | Module", Sequence[str]]]:
        """What a dotted name leads to, with the attributes that are left."""
        name, *attributes = chain
        starts: list[_Definition | Module] = []
        for imported in local.get(name, ()):
            starts += self.imported(imported)
        if name in module.definitions or name in module.imports or module.starred:
            starts += self.lookup(module, name)
        for start in starts:
            yield from self.descend(start, attributes)

    def descend(
        self, start: "_Definition | Module", attributes: Sequence[str]
    ) -> Iterator[tuple["_Definition | Module", Sequence[str]]]:
        """What the attributes of a module lead to."""
        if isinstance(start, Module) and attributes:
            for result in self.lookup(start, attributes[0]):
                yield from self.descend(result, attributes[1:])
        else:
            yield start, attributes


@dataclass
class ReachableCode:
    """The reachable definitions, and digests of each.

    Attributes:
        sources: where modules are found; other modules are other libraries.
        digests: by the name of a definition, `module:qualified name`.
    """

    sources: Sources
    digests: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = _Names(self.sources)
        self._attributes: set[str] = set()
        self._methods: dict[str, list[tuple[Module, str, ast.AST]]] = defaultdict(list)
        self._todo: list[tuple[Module, str, ast.AST]] = []
        self._seen: dict[int, ast.AST] = {}  # keeps the nodes, so that an id is used once
        self._touched: set[str] = set()
        self._reached: set[tuple[str, str]] = set()  # definitions at the top level
        self._watched: list[_Definition] = []  # classes that see their subclasses
        self._changed: dict[tuple[str, str], frozenset[tuple[str, str]]] = {}

    def add(self, module: str, name: str) -> None:
        """Adds a function or class, the types in its annotations, and all that they reach.

        Raises:
            LookupError: the sources do not define it.
        """
        source = self.sources.find(module)
        starts = [] if source is None else self._names.lookup(source, name)
        if not starts:
            raise LookupError(f"no source of {module}.{name}")
        with _without_garbage_collection():
            for start in starts:
                self._reach(start)
                if isinstance(start, _Definition):
                    for statement in start.statements:
                        self._start(start.module, statement)
            while self._todo:
                while self._todo:
                    self._read(*self._todo.pop())
                self._add_registrations()
                self._add_subclasses()

    def digest(self, names: Iterable[str] | None = None) -> str:
        """One digest of some definitions, by default of all."""
        chosen = sorted(self.digests if names is None else names)
        text = "\n".join(f"{name} {' '.join(self.digests[name])}" for name in chosen)
        return hashlib.sha256(text.encode()).hexdigest()

    def _start(self, module: Module, statement: ast.stmt) -> None:
        """Annotations of the first function are followed; all methods of the first class are."""
        if isinstance(statement, FUNCTIONS):
            syntax = Syntax(module, follow_annotations=True)
            syntax.function(statement)
            self._refer(module, syntax)
        elif isinstance(statement, ast.ClassDef):
            for node in ast.walk(statement):
                if isinstance(node, FUNCTIONS):
                    self._use({node.name})

    # What a definition brings.

    def _reach(self, target: _Definition | Module) -> None:
        if isinstance(target, Module):
            target.parse()
            self._touch(target)
            for name in target.definitions:
                self._reach(_Definition(target, name))
            return
        key = (target.module.name, target.name)
        if key in self._reached:
            return
        self._reached.add(key)
        self._touch(target.module)
        for statement in target.statements:
            label = target.module.label(statement)
            self._reached.update((target.module.name, name) for name in label.split(", "))
            self._queue(target.module, label, statement)

    def _queue(self, module: Module, name: str, node: ast.AST) -> None:
        if id(node) not in self._seen:
            self._seen[id(node)] = node
            self._todo.append((module, name, node))

    def _touch(self, module: Module) -> None:
        """Adds what a module executes when it is imported, and the C sources next to it."""
        if module.name in self._touched:
            return
        self._touched.add(module.name)
        module.parse()
        if module.executed:
            together = ast.Module(module.executed, [])
            self._queue(module, "executed at import", together)
        parent = self.sources.find(module.name.rpartition(".")[0])
        if parent is not None:
            self._touch(parent)
        folder = module.path.parent
        compiled = sorted([*folder.glob("*.c"), *folder.glob("*.h")]) or sorted(
            path for kind in ("*.so", "*.pyd") for path in folder.glob(kind)
        )
        for path in compiled:
            text = path.read_bytes()
            if path.suffix in (".c", ".h"):
                text = b" ".join(_COMMENT_OF_C.sub(_text_of_c, text).split())
            self._add_digest(f"{module.package}:{path.name}", text)

    def _read(self, module: Module, name: str, node: ast.AST) -> None:
        syntax = Syntax(module)
        if isinstance(node, ast.ClassDef):
            self._read_class(module, name, node, syntax)
        else:
            syntax.read(node)
        self._add_digest(f"{module.name}:{name}", "\n".join(syntax.tokens).encode())
        self._refer(module, syntax)

    def _add_digest(self, name: str, content: bytes) -> None:
        """Several functions of a class may have one name, such as those of a property."""
        digests = self.digests.setdefault(name, [])
        digests.append(hashlib.sha256(content).hexdigest())
        digests.sort()

    def _read_class(self, module: Module, name: str, node: ast.ClassDef, syntax: Syntax) -> None:
        syntax.tokens.append(f"class {node.name}")
        for expression in (*node.decorator_list, *node.bases, *node.keywords):
            syntax.read(expression)
        called_by_others = self._has_foreign_base(module, node)
        for statement in node.body:
            if isinstance(statement, FUNCTIONS):
                self._add_method(module, f"{name}.{statement.name}", statement, called_by_others)
                if statement.name == "__init_subclass__":
                    self._watched.append(_Definition(module, node.name))
                continue
            syntax.read(statement)
            if isinstance(statement, ast.AnnAssign):
                # The type of a dataclass's field is part of the class, but not followed.
                annotation = Syntax(module)
                annotation.read(statement.annotation)
                syntax.tokens += annotation.tokens

    def _add_method(
        self, module: Module, name: str, method: ast.AST, called_by_others: bool
    ) -> None:
        """Adds a method now if it may be called already, else when its name is used."""
        short_name = name.rpartition(".")[2]
        is_special = short_name.startswith("__") and short_name.endswith("__")
        if called_by_others or is_special or short_name in self._attributes:
            self._queue(module, name, method)
        else:
            self._methods[short_name].append((module, name, method))

    def _has_foreign_base(self, module: Module, node: ast.ClassDef) -> bool:
        """Whether a base comes from another library, which may call the methods."""
        for base in node.bases:
            for imported in module.imports.get(root_of(base), ()):
                is_foreign = self.sources.find(imported.module) is None
                if is_foreign and imported.module not in _PASSIVE_MODULES:
                    return True
            for start, _ in self._names.follow(module, dotted_name(base), {}):
                if isinstance(start, _Definition) and any(
                    isinstance(statement, ast.ClassDef)
                    and statement is not node
                    and self._has_foreign_base(start.module, statement)
                    for statement in start.statements
                ):
                    return True
        return False

    def _refer(self, module: Module, syntax: Syntax) -> None:
        """Adds everything that a definition refers to."""
        attributes = set(syntax.attributes)
        for chain in syntax.chains:
            name = chain[0]
            is_known = name in syntax.imports or name in module.imports
            for target, unresolved in self._names.follow(module, chain, syntax.imports):
                self._reach(target)
                attributes.update(unresolved)
                if "__subclasses__" in unresolved and isinstance(target, _Definition):
                    self._watched.append(target)
            if name in syntax.bound or not is_known:
                attributes.update(chain[1:])
        for imports in syntax.imports.values():
            for imported in imports:
                source = self.sources.find(imported.module)
                if source is not None:
                    self._touch(source)
        for dotted in syntax.modules:
            named = self.sources.find(dotted)
            if named is not None:
                self._reach(named)
        self._use(attributes)

    def _use(self, attributes: set[str]) -> None:
        for name in attributes - self._attributes:
            for method in self._methods.pop(name, ()):
                self._queue(*method)
        self._attributes |= attributes

    # What modules do when they are imported.

    def _add_registrations(self) -> None:
        for module in self.sources.all_of_project():
            for callee in module.called_at_import:
                if self._reached & self._changed_by(module, callee):
                    self._touch(module)
                    for name in _decorated(module, callee):
                        self._reach(_Definition(module, name))

    def _changed_by(self, module: Module, callee: str) -> frozenset[tuple[str, str]]:
        """The definitions whose content a call at the top level of a module may change."""
        key = (module.name, callee)
        if key not in self._changed:
            name, *attributes = callee.split(".")
            changed: set[tuple[str, str]] = set()
            for target in self._named_in_text(module, name):
                for start, unresolved in self._names.descend(target, attributes):
                    if isinstance(start, _Definition):
                        if unresolved or start.is_variable:
                            changed.add((start.module.name, start.name))
                        changed |= self._variables_of(start, _CALLS_FOLLOWED)
            self._changed[key] = frozenset(changed)
        return self._changed[key]

    def _named_in_text(self, module: Module, name: str) -> list[_Definition | Module]:
        """What a name leads to, without parsing a module that imports it from elsewhere."""
        if module.defines_in_text(name):
            return self._names.lookup(module, name)
        source = module.source_in_text(name)
        if source is None or not self.sources.is_of_project(source):
            return []
        return self._names.imported(Import(source, name))

    def _variables_of(self, definition: _Definition, calls: int) -> set[tuple[str, str]]:
        """The variables that a function or class may change, itself or through some calls."""
        variables: set[tuple[str, str]] = set()
        if definition.is_variable:
            return variables
        for statement in definition.statements:
            syntax = Syntax(definition.module)
            syntax.read(statement)
            for chain in syntax.chains | syntax.changed:
                for start, unresolved in self._names.follow(
                    definition.module, chain, syntax.imports
                ):
                    if not isinstance(start, _Definition) or start == definition:
                        continue
                    if start.is_variable and start.is_changed(chain in syntax.changed, unresolved):
                        variables.add((start.module.name, start.name))
                    elif calls:
                        variables |= self._variables_of(start, calls - 1)
        return variables

    def _add_subclasses(self) -> None:
        for watched in self._watched:  # grows: subclasses of subclasses are watched, too
            for module in self.sources.all_of_project():
                if watched.name in module.bases_of_classes:
                    for name in self._subclasses(module.parse(), watched):
                        self._reach(_Definition(module, name))
                        if _Definition(module, name) not in self._watched:
                            self._watched.append(_Definition(module, name))

    def _subclasses(self, module: Module, watched: _Definition) -> Iterator[str]:
        for name, statements in list(module.definitions.items()):
            for statement in statements:
                if isinstance(statement, ast.ClassDef):
                    for base in statement.bases:
                        starts = self._names.follow(module, dotted_name(base), {})
                        if any(start == watched for start, _ in starts):
                            yield name


def _decorated(module: Module, callee: str) -> Iterator[str]:
    """The definitions of a module with a decorator that begins with a name."""
    for name, statements in list(module.definitions.items()):
        for statement in statements:
            decorators = statement.decorator_list if isinstance(statement, DEFINITIONS) else ()
            if any(ast.unparse(decorator).partition("(")[0] == callee for decorator in decorators):
                yield name


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Syntax trees are many objects without garbage: collections would take half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _text_of_c(match: re.Match[bytes]) -> bytes:
    return match.group() if match.group().startswith(b'"') else b" "

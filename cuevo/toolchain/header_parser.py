"""The C header of the kernels as pycparser reads it: declarations of structs and kernels."""

import re
from typing import Any

from pycparser import CParser, c_ast
from pycparser.c_parser import ParseError

from cuevo.errors import CuevoError
from cuevo.toolchain.structs import POINTER, RESERVED, SCALARS, Member

_SUPPORTED = (
    "a pointer, " + ", ".join(SCALARS) + ", or an array of one of them with a literal length"
)


def parse(text: str, file: str) -> tuple[dict[str, tuple[Member, ...]], dict[str, str]]:
    """Members of each struct of a header, and by a kernel's name the name of its parameter struct.

    Raises CuevoError, beginning with `file` and a line, for what cannot be a parameter block.
    """
    preamble = "".join(
        f"typedef int {name};\n" for name in SCALARS if name not in ("float", "double")
    )
    source = f'{preamble}#line 1 "{file}"\n{_without_comments_and_directives(text)}'
    try:
        tree = CParser().parse(source, file)
    except ParseError as error:
        raise CuevoError(f"{error}") from error

    structs: dict[str, tuple[Member, ...]] = {}
    typedefs: dict[str, str] = {}
    kernels: dict[str, str] = {}
    for node in tree.ext:
        if isinstance(node, c_ast.Typedef):
            if node.name in SCALARS:
                continue
            inner = getattr(node.type, "type", None)
            if not isinstance(inner, c_ast.Struct):
                raise _error(node, f"typedef {node.name} does not name a struct")
            tag = inner.name or node.name
            if inner.decls is not None:
                structs[tag] = _read_struct(tag, inner)
            typedefs[node.name] = tag
        elif isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.Struct):
            if node.type.decls is not None:
                structs[node.type.name] = _read_struct(node.type.name, node.type)
        elif isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
            kernels[node.name] = _read_prototype(node, structs, typedefs)
        elif not isinstance(node, c_ast.StaticAssert):
            raise _error(node, "only structs, their typedefs and kernel prototypes are understood")
    return structs, kernels


def _read_struct(name: str, node: Any) -> tuple[Member, ...]:
    members: list[Member] = []
    for declaration in node.decls:
        if not isinstance(declaration, c_ast.Decl) or declaration.name is None:
            raise _error(declaration, f"struct {name}: every member must have a name")
        if declaration.bitsize is not None:
            raise _error(declaration, f"{name}.{declaration.name}: bit-fields are not supported")
        if declaration.name in RESERVED or declaration.name.startswith("_"):
            raise _error(
                declaration,
                f"{name}.{declaration.name}: the name is taken by a property of the struct itself; "
                "choose another one",
            )
        kind, length = _read_type(declaration.type, name, declaration)
        alignment = _read_alignment(declaration, name)
        is_written = kind == POINTER and "const" not in declaration.type.type.quals
        members.append(Member(declaration.name, kind, length, alignment, is_written))
    if not members:
        raise _error(node, f"struct {name} has no members")
    return tuple(members)


def _read_alignment(declaration: Any, struct_name: str) -> int:
    """Alignment that ``_Alignas`` asks for; 1 where there is none."""
    wanted = 1
    for specifier in declaration.align or ():
        value = getattr(specifier, "alignment", None)
        number = int(value.value, 0) if isinstance(value, c_ast.Constant) else 0
        if number < 1 or number & (number - 1):
            raise _error(
                declaration,
                f"{struct_name}.{declaration.name}: _Alignas takes a literal power of two here",
            )
        wanted = max(wanted, number)
    return wanted


def _read_type(node: Any, struct_name: str, declaration: Any) -> tuple[str, int]:
    """Kind and length of a `Member`."""
    if isinstance(node, c_ast.PtrDecl):
        return POINTER, 0
    if isinstance(node, c_ast.ArrayDecl):
        element, inner = _read_type(node.type, struct_name, declaration)
        length = node.dim
        if isinstance(length, c_ast.Constant) and not inner:
            count = int(re.sub(r"[uUlL]+$", "", length.value), 0)
            if count > 0:
                return element, count
    elif isinstance(node, c_ast.TypeDecl) and isinstance(node.type, c_ast.IdentifierType):
        name = " ".join(node.type.names)
        if name in SCALARS:
            return name, 0
    raise _error(declaration, f"{struct_name}.{declaration.name}: the type must be {_SUPPORTED}")


def _read_prototype(
    node: Any, structs: dict[str, tuple[Member, ...]], typedefs: dict[str, str]
) -> str:
    form = f"write `void {node.name}(const struct S params);` with a struct S declared above it"
    result = getattr(getattr(node.type.type, "type", None), "names", None)
    parameters = node.type.args.params if node.type.args is not None else []
    if result != ["void"] or len(parameters) != 1:
        raise _error(
            node, f"kernel {node.name} must return void and take one struct by value: {form}"
        )
    kind = parameters[0].type
    kind = kind.type if isinstance(kind, c_ast.TypeDecl) else None
    tag: str | None = None
    if isinstance(kind, c_ast.Struct):
        tag = kind.name
    elif isinstance(kind, c_ast.IdentifierType):
        tag = typedefs.get(" ".join(kind.names))
    if tag is None or tag not in structs:
        raise _error(node, f"the parameter of kernel {node.name} is no known struct: {form}")
    return tag


def _without_comments_and_directives(text: str) -> str:
    """Blank out what the parser does not read, keeping every line where it is; what C++ calls
    alignas by its name in C.
    """

    def blank(match: re.Match[str]) -> str:
        return "\n" * match.group().count("\n") or " "

    text = re.sub(r"/\*.*?\*/|//[^\n]*", blank, text, flags=re.S)
    text = re.sub(r"\balignas\b", "_Alignas", text)  # <stdalign.h>, and C++
    text = re.sub(
        r"^[ \t]*#[ \t]*ifdef[ \t]+__cplusplus\b.*?^[ \t]*#[ \t]*endif[^\n]*",
        blank,
        text,
        flags=re.S | re.M,
    )
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)


def _error(node: Any, message: str) -> CuevoError:
    return CuevoError(f"{node.coord.file}:{node.coord.line}: {message}")

"""The mistakes that can be planted in a source file, each in the body of one function."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
_PAIRS: tuple[tuple[type[Any], type[Any]], ...] = (
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn),
    (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv),
)  # fmt: skip
_OTHER = dict(_PAIRS) | {second: first for first, second in _PAIRS}


@dataclass(frozen=True)
class Mistake:
    """The mistake number `number` of the function `name` in line `line` of `file`."""

    file: str
    name: str
    line: int
    number: int
    text: str

    def compile(self) -> CodeType:
        tree = ast.parse(Path(self.file).read_text())
        function = next(function for function in _functions(tree) if function.lineno == self.line)
        _make_wrong(list(_places(function))[self.number])
        module = compile(ast.fix_missing_locations(tree), str(Path(self.file).resolve()), "exec")
        return next(code for code in _codes(module) if self.is_in(code))

    def is_in(self, code: CodeType) -> bool:
        """Return True if `code` is that of the function. A decorated one begins at its first decorator."""
        last = max((line for _, _, line in code.co_lines() if line is not None), default=0)
        return code.co_name == self.name and code.co_firstlineno <= self.line <= last


def mistakes_in(file: Path) -> Iterator[Mistake]:
    for function in _functions(ast.parse(file.read_text())):
        for number, node in enumerate(_places(function)):
            text = f"{type(node).__name__} {ast.unparse(node).splitlines()[0][:60]}"
            yield Mistake(str(file), function.name, function.lineno, number, text)


def _functions(tree: ast.Module | ast.ClassDef) -> Iterator[Function]:
    """Yield functions and methods, but none that is inside another one."""
    for node in tree.body:
        if isinstance(node, Function):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _places(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of the body that can be wrong. Texts of errors and types of variables cannot."""
    for statement in function.body[ast.get_docstring(function) is not None :]:
        yield from _places_in(statement)


def _places_in(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.arguments):
        return
    if _can_be_wrong(node):
        yield node
    for name, field in ast.iter_fields(node):
        if name not in {"annotation", "returns", "decorator_list", "pattern"}:
            for child in field if isinstance(field, list) else [field]:
                if isinstance(child, ast.AST):
                    yield from _places_in(child)


def _can_be_wrong(node: ast.AST) -> bool:
    match node:
        case ast.Compare(ops=[operator]) | ast.BoolOp(op=operator) | ast.BinOp(op=operator):
            return type(operator) in _OTHER
        case ast.Constant(value=bool() | int() | str()) | ast.If() | ast.IfExp():
            return True
        case ast.Return(value=value) | ast.Expr(value=ast.Call() as value):
            return value is not None and not isinstance(value, ast.Constant)
    return False


def _make_wrong(node: ast.AST) -> None:
    """Give the node another operator, value or condition, or take its call away."""
    match node:
        case ast.Compare(ops=[operator]):
            node.ops = [_OTHER[type(operator)]()]
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator):
            node.op = _OTHER[type(operator)]()
        case ast.Constant(value=bool() as value):
            node.value = not value
        case ast.Constant(value=str() as value):
            node.value = value + "x"
        case ast.Constant(value=int() as value):
            node.value = value + 1
        case ast.If(test=test) | ast.IfExp(test=test):
            node.test = ast.UnaryOp(ast.Not(), test)
        case ast.Return() | ast.Expr():
            node.value = ast.Constant(None)

"""Finds the names that a C++ source declares in its unnamed namespaces, without a compiler."""
import re

from cpp_functions import blank_out, without_directives

UNNAMED = re.compile(r"\bnamespace\s*\{")
TYPE = re.compile(r"\b(?:struct|class|union|enum(?:\s+class)?)\s+(\w+)[^;(){}]*\{")
FUNCTION = re.compile(r"^[^=({]*?\b(\w+)\s*\(")
CONSTANT = re.compile(r"\b(\w+)\s*(?:\[[^\]]*\]\s*)*[={]")


def closing(code, at):
    """The position of the brace that closes the one before `at`."""
    depth = 1
    while depth and at < len(code):
        depth += {"{": 1, "}": -1}.get(code[at], 0)
        at += 1
    return at - 1


def without_inner(body):
    """The body of a namespace with what lies in braces replaced by blanks, and each closing brace ending a declaration."""
    text, depth = [], 0
    for letter in body:
        depth -= letter == "}"
        text.append("};" if letter == "}" and depth == 0 else letter if depth == 0 or letter == "\n" else " ")
        depth += letter == "{"
    return "".join(text)


def unnamed_names(text):
    """-> [(name, position)] of the types, functions and constants; not of aliases."""
    code, names = without_directives(blank_out(text)), []
    for block in UNNAMED.finditer(code):
        body = without_inner(code[block.end():closing(code, block.end())])
        for declaration in re.finditer(r"[^;]+", body):
            if re.match(r"\s*(?:using|namespace)\b", declaration[0]):
                continue
            found = next((m for m in (p.search(declaration[0]) for p in (TYPE, FUNCTION, CONSTANT)) if m), None)
            if found and found[1] not in ("if", "void"):
                names.append((found[1], block.end() + declaration.start() + found.start(1)))
    return names

"""Finds the functions of a C++ or CUDA source without a compiler, so that a check of the whole tree takes seconds."""
import dataclasses
import re

# Comments and literals. A character's quote after a digit separates digits.
TOKEN = re.compile(r'//[^\n]*|/\*[\s\S]*?\*/|R"([^\s()\\]*)\([\s\S]*?\)\1"|"(?:\\.|[^"\\\n])*"'
                   r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'")
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
ALTERNATIVE = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b")
TEMPLATE = re.compile(r"\btemplate\s*<")
# A type's name is followed by no parameters, unless a base class has them.
SCOPE = re.compile(r"\bnamespace\b|\bextern\s*$|\b(?:class|struct|union|enum)\b(?![^:]*\))", re.S)
OPERATOR = re.compile(r"\boperator\s*(?:\(\s*\)|[^\s\w(]+)")
ATTRIBUTE = re.compile(r"\b(?:__launch_bounds__|__align__|alignas|decltype)\s*\([^()]*\)")
NAME = re.compile(r"(operator\b[^(]*|~?\w+)\s*\(")


@dataclasses.dataclass(frozen=True)
class Function:
    name: str
    line: int     # of its opening brace
    lines: int    # from the line of the opening brace to that of the closing one


def blank_out(text):
    """C++ with comments and literals replaced by blanks, line breaks kept."""
    return TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def without_directives(code):
    """Preprocessor lines replaced by blanks, and so are all branches of an #if but the first: they close the same braces."""
    lines, depths = code.split("\n"), []
    for i, line in enumerate(DIRECTIVE.sub(lambda m: m[0].replace("\\\n", "\\\n#"), code).split("\n")):
        word = ALTERNATIVE.match(line)
        if word and word[1].startswith("if"):
            depths.append(False)
        elif word and word[1] == "endif":
            depths and depths.pop()
        elif word and depths:
            depths[-1] = True
        if line.lstrip().startswith("#") or any(depths):
            lines[i] = ""
    return "\n".join(lines)


def without_template(header):
    """The header of a declaration without its template parameters, in which `class` and `=` have another meaning."""
    match = TEMPLATE.search(header)
    while match:
        depth, end = 1, match.end()
        while depth and end < len(header):
            depth += {"<": 1, ">": -1}.get(header[end], 0)
            end += 1
        header = header[:match.start()] + header[end:]
        match = TEMPLATE.search(header)
    return header


def plain(header):
    """The header of a declaration without template parameters, attributes and the symbols of an operator."""
    header = ATTRIBUTE.sub(" ", without_template(header))
    return OPERATOR.sub(lambda m: "operator ", header)


def kind_of(header):
    """What a brace after `header` opens: scope (a namespace or a type), function, or other (a list of values)."""
    if SCOPE.search(header):
        return "scope"
    outside, depth = [], 0    # what is in no parentheses
    for c in header:
        depth -= c == ")"
        if depth == 0:
            outside.append(c)
        depth += c == "("
    outside = "".join(outside)
    is_value = re.search(r"(?<![=!<>])=(?!=)", outside)
    if is_value and not re.search(r"=\s*\[[^\]]*\]", outside):   # a lambda is a function
        return "other"
    return "function" if ")" in outside else "other"


def functions(text):
    """-> the functions of namespaces and types, and the line of a brace that matches none, or None. Lambdas and local types
    count as a part of the function that they stand in."""
    code = without_directives(blank_out(text))
    found, scopes, header_at, line, before = [], [], 0, 1, ""
    opened = None    # the function, or list of values, that is open: (kind, name, line)
    depth = 0
    for match in re.finditer(r"[{};\n]", code):
        c = match[0]
        if c == "\n":
            line += 1
        elif c == "{":
            if opened is None:
                own = code[header_at:match.start()]
                # Members that a constructor initializes may have braces, too: the body comes after theirs.
                before = before + " " + own if not own.strip() or own.lstrip().startswith(",") else own
                header = plain(before)
                kind = kind_of(header)
                if kind == "scope":
                    scopes.append(line)
                else:
                    name = NAME.search(header)
                    opened, depth = (kind, name[1].strip() if name else "a function", line), 1
            else:
                depth += 1
            header_at = match.end()
        elif c == "}":
            if opened is not None:
                depth -= 1
                if depth == 0:
                    kind, name, first = opened
                    if kind == "function":
                        found.append(Function(name, first, line - first))
                    opened = None
            elif scopes:
                scopes.pop()
            else:
                return found, line
            header_at = match.end()
        elif opened is None:
            header_at = match.end()
    return found, opened[2] if opened else scopes[-1] if scopes else None

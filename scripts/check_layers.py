#!/usr/bin/env python3
"""Checks every #include by the DEPS lists of CMake, and refuses circles.

  scripts/check_layers.py [root]

A file in lib/x may include its own folder and the DEPS of `mtrain_lib(x ...)`, named there one by one; kernels/ is
the library `kernels`. A file in apps/ may include whatever its program's libraries reach.
"""
import pathlib
import re
import sys

from check_files import Report, Tree, is_in

# The design fixes what these folders may depend on: their DEPS lists must not grow beyond this.
MOST_DEPS = {
    "base": set(),
    "kernels": {"base"},
    "spec": {"base"},
    "recipe": {"base", "spec"},
    "mesh": {"base"},
    "schedule": {"base"},
    "plan": {"base", "spec", "recipe", "mesh", "schedule"},
    "device": {"base"},
    "interchange": {"base", "spec", "recipe", "storage"},
}
# Folders on which only the given folders may depend: code below lib/plan reads a plan, never a recipe; lib/interchange
# translates the recipe's model.
USERS = {"recipe": {"plan", "interchange"}}
# The only folders that may include headers of CUDA libraries.
CUDA_FOLDERS = ("lib/device/cuda", "lib/comm/nccl", "kernels/cuda")
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|curand|cusparse|cutlass|cute|nccl|nvml|nvtx|nvToolsExt|cooperative_groups"
                         r"|cub/|thrust/|mma\.h)")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
LIBRARY = re.compile(r"^[ \t]*mtrain_lib\(([^)]*)\)", re.M)
LINKED = re.compile(r"\bmtrain_(\w+)")
KEYWORDS = {"SOURCES", "DEPS", "EXTERNAL", "PRIVATE_EXTERNAL"}


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def without_comments(text):
    return re.sub(r"#[^\n]*", "", text)


class Layers:
    def __init__(self, tree, report):
        self.tree, self.report = tree, report
        self.deps = {}    # library -> names in its DEPS list
        self.where = {}   # library -> its CMakeLists.txt
        self.known = set(tree.files)

    def run(self):
        self.read_lists()
        self.check_lists()
        self.check_folders()
        graph = self.check_includes()
        self.check_circle({name: sorted(deps) for name, deps in self.deps.items()},
                          lambda name: self.where.get(name, "lib"), "libraries")
        self.check_circle(graph, lambda path: path, "headers")

    def read_lists(self):
        for path in self.tree.files:
            if path.name != "CMakeLists.txt" or not is_in(path, "lib", "kernels"):
                continue
            text = without_comments(self.tree.text(path))
            for call in LIBRARY.finditer(text):
                words, deps, section = call[1].split(), set(), None
                for word in words[1:]:
                    if word in KEYWORDS:
                        section = word
                    elif section == "DEPS":
                        deps.add(word)
                name = words[0]
                folder = path.parent.name
                if name != folder:
                    self.report.error(path, line_of(text, call.start()),
                                      f"library {name} lies in the folder {folder}; they carry one name")
                self.deps[name], self.where[name] = deps, path

    def check_lists(self):
        for name, deps in self.deps.items():
            for dep in sorted(deps):
                if dep not in self.deps:
                    self.report.error(self.where[name], 1, f"DEPS of {name} names {dep}, which is not a library here")
            for dep in sorted(deps - MOST_DEPS.get(name, deps)):
                self.report.error(self.where[name], 1, f"{name} may not depend on {dep}: its place is below it")
            for dep in sorted(deps & set(USERS)):
                if name not in USERS[dep]:
                    self.report.error(self.where[name], 1, f"{name} may not depend on {dep}: that is for"
                                                           f" {', '.join(sorted(USERS[dep]))} and apps/")

    def check_folders(self):
        for path in self.tree.cpp("lib"):
            if len(path.parts) < 3:
                self.report.error(path, 1, "a source file belongs to a folder of lib/, not to lib/ itself")
            elif path.parts[1] not in self.deps:
                self.report.error(path, 1, f"lib/{path.parts[1]} is undeclared: no mtrain_lib({path.parts[1]} ...)")
        for path in self.tree.cpp("kernels"):
            if "kernels" not in self.deps:
                self.report.error(path, 1, "kernels is undeclared: no mtrain_lib(kernels ...)")

    def reach(self, names):
        """These libraries and all that they depend on."""
        found, todo = set(), list(names)
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo.extend(self.deps.get(name, ()))
        return found

    def allowed(self, path):
        """What a file may include: (libraries, how to name the rule)."""
        if path.parts[0] == "apps":
            lists = [p for p in self.tree.files if p.name == "CMakeLists.txt" and p.parent == path.parent]
            linked = {m[1] for p in lists for m in LINKED.finditer(without_comments(self.tree.text(p)))}
            return self.reach(linked & set(self.deps)), f"the libraries linked in {path.parent}/CMakeLists.txt"
        own = "kernels" if path.parts[0] == "kernels" else path.parts[1]
        return {own} | self.deps.get(own, set()), f"the DEPS of mtrain_lib({own} ...)"

    def resolve(self, path, name):
        """The project's file that this #include in `path` means, or None."""
        for base in (path.parent, pathlib.PurePosixPath("lib"), pathlib.PurePosixPath()):
            if base / name in self.known:
                return base / name
        return None

    def check_includes(self):
        used, graph = {}, {}
        for path in self.tree.cpp("lib", "kernels", "apps"):
            if path.parts[0] == "lib" and len(path.parts) < 3:
                continue
            text = self.tree.text(path)
            allowed, rule = self.allowed(path)
            for match in INCLUDE.finditer(text):
                line, quoted, name = line_of(text, match.start()), match[1] == '"', match[2]
                if CUDA_HEADER.match(name) and not quoted and not is_in(path, *CUDA_FOLDERS):
                    self.report.error(path, line, f"<{name}> is for {', '.join(CUDA_FOLDERS)} only")
                target = self.resolve(path, name) if ".." not in name.split("/") else None
                if not quoted:
                    if target and target.parts[0] in ("lib", "kernels", "apps"):
                        self.report.error(path, line, f"<{name}> is a header of the house: include it with quotes")
                    continue
                if target is None:
                    self.report.error(path, line, f'"{name}" names no file, seen from here, lib/ or the root')
                    continue
                graph.setdefault(path, []).append(target)
                if target.parts[0] == "apps":
                    if target.parent not in (path.parent, pathlib.PurePosixPath("apps")):  # apps/ itself is for both
                        self.report.error(path, line, f'"{name}" belongs to another program')
                    continue
                library = target.parts[1] if target.parts[0] == "lib" else target.parts[0]
                used.setdefault(self.library_of(path), set()).add(library)
                if library not in allowed:
                    self.report.error(path, line, f'"{name}" is of {library}, which is not in {rule}')
        for name, deps in self.deps.items():
            for dep in sorted(deps - used.get(name, set())):
                self.report.note(self.where[name], 1, f"{name} lists {dep} in its DEPS and includes nothing of it")
        return {path: sorted(targets) for path, targets in graph.items()}

    @staticmethod
    def library_of(path):
        return path.parts[1] if path.parts[0] == "lib" else path.parts[0]

    def check_circle(self, graph, where, what):
        """Depth first; a path back to a node that is still open is a circle, reported once."""
        done = set()

        def visit(node, way):
            if node in way:
                circle = way[way.index(node):] + [node]
                self.report.error(where(node), 1, f"circle of {what}: {' -> '.join(map(str, circle))}")
            elif node not in done:
                for target in graph.get(node, ()):
                    visit(target, way + [node])
            done.add(node)

        for node in sorted(graph):
            visit(node, [])


def check(tree, report):
    Layers(tree, report).run()


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1]
    report = Report()
    check(Tree(root), report)
    for finding in report.notes + report.errors:
        print(finding)
    return int(bool(report.errors))


if __name__ == "__main__":
    sys.exit(main())

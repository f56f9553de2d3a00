"""Helpers of the checks: the files of the project, their text, and the report of findings."""
import pathlib
import subprocess

CPP = {".h", ".cpp", ".cu", ".cuh"}


class Report:
    def __init__(self):
        self.errors, self.notes = [], []

    def error(self, path, line, text):
        self.errors.append(f"{path}:{line}: {text}")

    def note(self, path, line, text):
        self.notes.append(f"note: {path}:{line}: {text}")


# Folders that are skipped in a tree without git: results, and the caches of tools.
NOT_OURS = {"build", "data", "runs", ".git", "__pycache__"}


def git_names(root):
    """The files that git tracks or would add; None if git or its repository is missing."""
    if not (root / ".git").exists():
        return None
    try:
        listing = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                 cwd=root, check=True, capture_output=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        return None
    return [name for name in listing.split("\0") if name]


def walk_names(root):
    paths = (p.relative_to(root) for p in root.rglob("*"))
    return [str(p) for p in paths if p.parts[0] not in NOT_OURS and "__pycache__" not in p.parts]


class Tree:
    """The project's files below `root`: those that git tracks or would add, else all files outside of NOT_OURS."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        names = git_names(self.root)
        if names is None:
            names = walk_names(self.root)
        self.files = sorted({pathlib.PurePosixPath(n) for n in names if (self.root / n).is_file()})
        if not self.files:
            raise SystemExit(f"{self.root} has no files to check")
        self.cache = {}

    def text(self, path):
        """The file's text, or None if it is not text."""
        if path not in self.cache:
            raw = (self.root / path).read_bytes()
            try:
                self.cache[path] = None if b"\0" in raw else raw.decode()
            except UnicodeDecodeError:
                self.cache[path] = None
        return self.cache[path]

    def cpp(self, *below):
        """C++ files, of these top-level folders or all."""
        return [p for p in self.files
                if p.suffix in CPP and (not below or p.parts[0] in below) and self.text(p) is not None]


def is_in(path, *folders):
    return any(path.parts[:len(f.split("/"))] == tuple(f.split("/")) for f in folders)

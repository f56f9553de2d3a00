"""What the checks share: which files the project has, their text, and how a finding is told."""
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


class Tree:
    """The project's files below `root`: those that git knows or would add, else all of them."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        if (self.root / ".git").exists():
            listing = subprocess.run(
                ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                cwd=self.root, check=True, capture_output=True).stdout.decode()
            names = [name for name in listing.split("\0") if name]
        else:
            names = [str(p.relative_to(self.root)) for p in self.root.rglob("*")]
        self.files = sorted({pathlib.PurePosixPath(n) for n in names if (self.root / n).is_file()})
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

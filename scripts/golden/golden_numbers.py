"""Compares what golden files store with what is computed again: the numbers, never the versions that computed them."""
import math


def without_versions(value):
    """The value without the keys that name a version, at every depth."""
    if isinstance(value, dict):
        return {k: without_versions(v) for k, v in value.items() if k != "version" and not k.endswith("_version")}
    if isinstance(value, list):
        return [without_versions(v) for v in value]
    return value


def differences(stored, computed, tolerance, at=""):
    """-> a line for each place at which two trees of numbers differ. A number may differ by tolerance * max(1, |number|),
    a NaN by nothing."""
    if isinstance(stored, dict) and isinstance(computed, dict):
        lines = [f"{at}/{key} is only {'stored' if key in stored else 'computed'}" for key in sorted(stored.keys() ^ computed.keys())]
        for key in sorted(stored.keys() & computed.keys()):
            lines += differences(stored[key], computed[key], tolerance, f"{at}/{key}")
        return lines
    if isinstance(stored, list) and isinstance(computed, list):
        if len(stored) != len(computed):
            return [f"{at}: {len(stored)} are stored and {len(computed)} computed"]
        return [line for i, pair in enumerate(zip(stored, computed)) for line in differences(*pair, tolerance, f"{at}[{i}]")]
    if all(isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) for x in (stored, computed)):
        same = abs(stored - computed) <= tolerance * max(1.0, abs(stored))
    else:
        same = stored == computed
    return [] if same else [f"{at}: {stored} is stored and {computed} computed"]

"""Where settings come from: the files there are, and the variables of the environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from clusterkit.core.data import read_table
from clusterkit.core.errors import Problem, UserError

FILE_NAME = "clusterkit.yaml"
PREFIX = "CLUSTERKIT_"


def named_file(cwd: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the file that the user named outright, by CLUSTERKIT_CONFIG_FILE; None without.

    Raises:
        UserError: it does not exist.
    """
    path = _named(cwd, environ)
    try:
        missing = path is not None and not path.exists()
    except OSError:  # a name that is too long, a folder that is closed to us
        missing = True
    if missing:
        raise UserError(
            f"there is no configuration file {environ[PREFIX + 'CONFIG_FILE']}",
            hint="check --config-file and CLUSTERKIT_CONFIG_FILE",
        )
    return path


def nearest_file(cwd: Path) -> Path | None:
    """Return the configuration in the nearest folder from `cwd` upward; None without."""
    places = (folder / FILE_NAME for folder in (cwd, *cwd.parents))
    return next((path for path in places if path.is_file()), None)


def trusted_owners(cwd: Path, environ: Mapping[str, str]) -> frozenset[int]:
    """Return the id of whoever owns the configuration that the user named outright, if any.

    What else that owner has, and the configuration names (templates, a hostfile), is trusted too:
    he could as well have written it into the configuration.
    """
    path = _named(cwd, environ)
    try:
        return frozenset() if path is None else frozenset({path.stat().st_uid})
    except OSError:
        return frozenset()


def expand_home(text: str) -> Path:
    """Return a path with `~` replaced by a home folder.

    Raises:
        UserError: there is no such user, or no home.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"there is no home folder for {text}", hint="write the whole path"
        ) from error


def _named(cwd: Path, environ: Mapping[str, str]) -> Path | None:
    named = environ.get(PREFIX + "CONFIG_FILE")
    return cwd / expand_home(named) if named else None


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Return where the user's own file would lie; None where there is no home folder."""
    base = _base(environ, "XDG_CONFIG_HOME", ".config")
    return None if base is None else base / "clusterkit" / "config.yaml"


def configured(cwd: Path, environ: Mapping[str, str]) -> dict[str, bytes]:
    """Return what the files of the configuration hold, by their paths, the strongest first.

    Raises:
        UserError: the file that is named is missing.
        OSError: one cannot be read.
    """
    project = named_file(cwd, environ) or nearest_file(cwd)
    paths = (project, user_file(environ))
    return {str(path): path.read_bytes() for path in paths if path and path.is_file()}


def may_have(key: str, cwd: Path, environ: Mapping[str, str]) -> bool:
    """Tell, without reading them as YAML, whether any source can hold a key of a cluster.

    False where they cannot be read: whoever loads the settings says what is wrong.
    """
    try:
        texts = configured(cwd, environ).values()
    except (OSError, UserError):
        return False
    return bool(environ.get(variable(key))) or any(key.encode() in one for one in texts)


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of what can be made anew; None where there is no home folder."""
    base = _base(environ, "XDG_CACHE_HOME", ".cache")
    return None if base is None else base / "clusterkit"


def _base(environ: Mapping[str, str], variable: str, usual: str) -> Path | None:
    """Return a base folder of the XDG specification, which has relative ones ignored."""
    home, given = environ.get("HOME", ""), environ.get(variable, "")
    if Path(given).is_absolute():
        return Path(given)
    return Path(home, usual) if home else None


def display(path: Path, cwd: Path) -> str:
    """Return a path as messages name it: relative where it lies below `cwd`."""
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def variable(key: str) -> str:
    """Return the name of the variable that sets `key` of the clusters."""
    return PREFIX + key.upper()


def unread_variables(environ: Mapping[str, str], keys: Iterable[str]) -> tuple[Problem, ...]:
    """Return one problem for each `CLUSTERKIT_*` variable that nothing reads."""
    others = read_table(__file__, "variables.tsv")
    names = (*keys, *(name for row in others for name in row["names"].split()))
    known = {variable(name) for name in names}
    # The common prefix would make every name look close.
    keys_read = {name.removeprefix(PREFIX).lower(): name for name in known}
    problems = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            near = get_close_matches(name.removeprefix(PREFIX).lower(), keys_read, n=1)
            hint = f"did you mean {keys_read[near[0]]!r}?" if near else "remove it"
            problems.append(Problem(message=f"nothing reads the variable {name}", hint=hint))
    return tuple(problems)

"""Rules J9xx: what a scheduler has to be told, and what it cannot take."""

from __future__ import annotations

import posixpath
import re

from engine.config import Config
from engine.facts import Facts
from engine.rules.row import Rule

_SHORT = {
    "A": "account",
    "C": "constraint",
    "D": "chdir",
    "G": "gpus",
    "J": "job-name",
    "N": "nodes",
    "a": "array",
    "c": "cpus-per-task",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "W": "wait",
}
# They follow from [cluster]: a job of another shape is not the one that was planned.
_OF_THE_LAYOUT = (
    *("nodes", "ntasks", "array", "wrap"),
    *("ntasks-per-node", "tasks-per-node", "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu"),
)
# sbatch submits nothing with these, or answers when the job has ended.
_OF_ANOTHER_SUBMISSION = ("test-only", "wait", "help", "usage", "version")
# A long option with its value after = or a space; a short one, whose value may follow at once, unless it takes none.
_OPTION = re.compile(r"--[A-Za-z][A-Za-z0-9-]*(=\S*|\s+[^\s-]\S*)?|-[HhOQsvVW]|-(?![HhOQsvVW])[A-Za-z](\s*[^\s-]\S*)?")
_IN_QUOTES = re.compile(r"'[^']*'|\"[^\"]*\"")
# minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds
_TIME = re.compile(
    r"\d+|\d+:\d+|\d+:\d+:\d+|\d+-\d+|\d+-\d+:\d+|\d+-\d+:\d+:\d+|UNLIMITED|INFINITE", re.IGNORECASE | re.ASCII
)
_CLAIM = r"(?=[^:]{1,253}:)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_VOLUME = re.compile(rf"{_CLAIM}:(/[^:\s/]+)+/?")
_IMAGE = re.compile(
    r"((\[[0-9a-fA-F:]+\]|[A-Za-z0-9][A-Za-z0-9.-]*)(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+:[0-9a-f]+)?",
    re.ASCII,
)
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# The seconds of --signal have 16 bits.
LONGEST_NOTICE_S = 65_535
# Mounted by titan itself.
_TAKEN = ("/dev/shm", "/etc/titan")


def option_name(option: str) -> str:
    """The long name of an option of sbatch as it is written: `-p gpu` is `partition`."""
    name = re.split(r"[=\s]", option.strip(), maxsplit=1)[0]
    if name.startswith("--"):
        return name[2:]
    return _SHORT.get(name[1:2], name[:2])


def fits_a_script(path: str) -> bool:
    """Whether a path can stand in an option of sbatch: it reads % as a number of the job, and a backslash never."""
    return path.isprintable() and not set(path) & {"%", "\\"}


def volume_parts(volume: str) -> tuple[str, str]:
    """Claim and path of `claim:/path`."""
    claim, _, path = volume.partition(":")
    return claim, path.rstrip("/") or "/"


def holds(path: str, folder: str) -> bool:
    """Whether a path lies in a folder."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _on(f: Facts, scheduler: str) -> bool:
    return f.config.launch.scheduler == scheduler


def _texts(f: Facts) -> list[tuple[str, str]]:
    slurm = f.config.launch.slurm
    names = [(name, text) for name in ("partition", "account", "qos") if (text := getattr(slurm, name)) is not None]
    return [*(("extra", text) for text in slurm.extra), *names]


def _broken_text(f: Facts) -> tuple[str, str] | None:
    """The first text that would not be one option of sbatch, with its key."""
    for name, text in _texts(f):
        # sbatch reads quotes, and what follows a # outside of them is a comment.
        bare = _IN_QUOTES.sub("q", text) if name == "extra" else text
        is_wanted = _OPTION.fullmatch(bare) if name == "extra" else re.fullmatch(r"[^\s-]\S*", bare)
        if is_wanted is None or not text.isprintable() or "\\" in text or set(bare) & set("#'\""):
            return name, text
    return None


def _text_in_words(f: Facts) -> dict[str, object]:
    name, text = _broken_text(f) or ("", "")
    return {"name": name, "text": text, "wanted": "an option of sbatch" if name == "extra" else "a name"}


def _of_the_layout(f: Facts) -> list[str]:
    return [text for text in f.config.launch.slurm.extra if _is_any(text, _OF_THE_LAYOUT)]


def _of_another_submission(f: Facts) -> list[str]:
    return [text for text in f.config.launch.slurm.extra if _is_any(text, _OF_ANOTHER_SUBMISSION)]


def _is_any(text: str, options: tuple[str, ...]) -> bool:
    """Whether an option is one of these; sbatch takes the beginning of a name for it."""
    return any(option.startswith(option_name(text)) for option in options)


def _wrong_folder(f: Facts) -> str | None:
    """Why what starts the run elsewhere cannot name its folder; None where it can."""
    folder = f.config.job.dump_folder
    if not folder.isprintable():
        return "it has a control character"
    if _on(f, "slurm") and not fits_a_script(folder):
        return "Slurm reads % as a number of the job, and drops a backslash"
    if _on(f, "kubernetes") and folder.startswith("-"):
        return "a path in a container that begins with - reads as an option"
    return None


def _wrong_volumes(f: Facts) -> list[str]:
    volumes = f.config.launch.kubernetes.volumes
    paths = [volume_parts(volume)[1] for volume in volumes]
    return [
        volume
        for volume, path in zip(volumes, paths, strict=True)
        if not _VOLUME.fullmatch(volume) or path in _TAKEN or paths.count(path) > 1 or _steps(path)
    ]


def _steps(path: str) -> bool:
    """Whether a path has steps that name no folder, so that it may be another path."""
    return not path.isprintable() or not {".", ".."}.isdisjoint(path.split("/"))


def is_lost(config: Config) -> bool:
    """Whether what a run on Kubernetes writes lies in no claim, and goes with its pods."""
    mounted = [volume_parts(volume)[1] for volume in config.launch.kubernetes.volumes]
    folder = posixpath.normpath(config.job.dump_folder)
    return not any(holds(folder, path) for path in mounted)


def keeps_checkpoints(config: Config) -> bool:
    """Whether pods that are started again find a checkpoint to go on from."""
    return config.checkpoint.enable and not is_lost(config)


def _is_two_parts(time: str | None) -> bool:
    return time is not None and re.fullmatch(r"\d+:\d+", time, re.ASCII) is not None


def _two_parts_in_words(f: Facts) -> dict[str, object]:
    time = f.config.launch.slurm.time or ""
    return {"minutes": int(time.partition(":")[0] or 0), "hours": f"{time}:00", "three": f"00:{time}"}


JOB_RULES: tuple[Rule, ...] = (
    Rule(
        id="J901",
        key="cluster.gpu",
        also=("launch.scheduler",),
        broken=lambda f: not _on(f, "local") and f.config.cluster.gpu == "auto",
        message="launch.scheduler = {launch.scheduler} starts the run elsewhere, and cluster.gpu = auto is what this "
        "machine has",
        fix="set cluster.gpu to the kind of GPU of the cluster's nodes, or to cpu",
        why="a plan is made before the job waits for its nodes, for the memory and the speed of their GPUs",
    ),
    Rule(
        id="J902",
        key="launch.slurm.extra",
        also=("launch.slurm.partition", "launch.slurm.account", "launch.slurm.qos"),
        broken=lambda f: _on(f, "slurm") and _broken_text(f) is not None,
        message="launch.slurm.{name} has {text!r}, which is not {wanted}",
        fix="write launch.slurm.extra as options, one a string (--exclude=n7), and the others as plain names",
        words=_text_in_words,
        why="each becomes one line of the batch script, and a line that Slurm does not read is ignored in silence",
    ),
    Rule(
        id="J903",
        key="launch.slurm.extra",
        broken=lambda f: _on(f, "slurm") and _broken_text(f) is None and bool(_of_the_layout(f)),
        message="launch.slurm.extra has {options}, which follows from cluster.nodes and the layout",
        fix="leave it out of launch.slurm.extra; a job has cluster.nodes nodes with one task each",
        words=lambda f: {"options": " and ".join(_of_the_layout(f))},
        edit=lambda f: {
            "launch.slurm.extra": tuple(o for o in f.config.launch.slurm.extra if o not in _of_the_layout(f))
        },
        why="torchrun starts the processes of a node, so Slurm starts one torchrun on each",
    ),
    Rule(
        id="J904",
        key="launch.slurm.time",
        broken=lambda f: (
            _on(f, "slurm")
            and f.config.launch.slurm.time is not None
            and not _TIME.fullmatch(f.config.launch.slurm.time)
        ),
        message="launch.slurm.time = {launch.slurm.time!r} is no time limit of Slurm",
        fix='write it as hours:minutes:seconds ("12:00:00"), days-hours ("2-00") or minutes ("90")',
        why="a script with a time limit that Slurm cannot read is refused when it is submitted",
    ),
    Rule(
        id="J905",
        key="launch.kubernetes.image",
        also=("launch.scheduler",),
        broken=lambda f: _on(f, "kubernetes") and not (f.config.launch.kubernetes.image or "").strip(),
        message="launch.scheduler = kubernetes starts containers, and launch.kubernetes.image names no image",
        fix="set launch.kubernetes.image to one with titan in it",
        why="pods run what is in their image, and titan publishes none",
    ),
    Rule(
        id="J906",
        key="launch.kubernetes.volumes",
        broken=lambda f: _on(f, "kubernetes") and bool(_wrong_volumes(f)),
        message="launch.kubernetes.volumes has {volumes}: each is a claim and a path of its own in the container",
        fix="write each as claim:/path, with a path that no other has, not / nor /dev/shm nor /etc/titan",
        words=lambda f: {"volumes": " and ".join(_wrong_volumes(f))},
        why="every entry mounts one PersistentVolumeClaim of the namespace; shared memory is mounted anyway",
    ),
    Rule(
        id="J907",
        key="launch.kubernetes.volumes",
        also=("job.dump_folder",),
        severity="warning",
        broken=lambda f: _on(f, "kubernetes") and not _wrong_volumes(f) and is_lost(f.config),
        message="job.dump_folder = {job.dump_folder} is in none of launch.kubernetes.volumes: what the run writes "
        "goes with its pods",
        fix="set launch.kubernetes.volumes to a claim (claim:/data) and job.dump_folder to a folder in it (/data/runs)",
        why="a container's own disk is gone when its pod is; events and logs outlive it in a claim only",
    ),
    Rule(
        id="J908",
        key="launch.kubernetes.namespace",
        broken=lambda f: _on(f, "kubernetes") and not _NAMESPACE.fullmatch(f.config.launch.kubernetes.namespace),
        message="launch.kubernetes.namespace = {launch.kubernetes.namespace!r} cannot name one",
        fix="write it in lower-case letters, digits and dashes, 63 at most",
        why="names of namespaces are names of hosts, and others are refused",
    ),
    Rule(
        id="J909",
        key="launch.slurm.extra",
        broken=lambda f: _on(f, "slurm") and _broken_text(f) is None and bool(_of_another_submission(f)),
        message="launch.slurm.extra has {options}, with which sbatch submits nothing or waits for the job's end",
        fix="leave it out of launch.slurm.extra; titan launch --dry-run prints the script without submitting it",
        words=lambda f: {"options": " and ".join(_of_another_submission(f))},
        edit=lambda f: {
            "launch.slurm.extra": tuple(o for o in f.config.launch.slurm.extra if o not in _of_another_submission(f))
        },
        why="titan launch needs the number of a job that is in the queue, within half a minute",
    ),
    Rule(
        id="J910",
        key="job.dump_folder",
        also=("launch.scheduler",),
        broken=lambda f: not _on(f, "local") and _wrong_folder(f) is not None,
        message="job.dump_folder = {job.dump_folder!r} cannot be handed to {launch.scheduler}: {reason}",
        fix="set job.dump_folder to a path of plain characters, such as /data/runs",
        words=lambda f: {"reason": _wrong_folder(f)},
        why="the path stands in lines that a scheduler reads in its own way, and the run would write elsewhere",
    ),
    Rule(
        id="J911",
        key="launch.kubernetes.image",
        broken=lambda f: (
            _on(f, "kubernetes")
            and bool((f.config.launch.kubernetes.image or "").strip())
            and not _IMAGE.fullmatch(f.config.launch.kubernetes.image or "")
        ),
        message="launch.kubernetes.image = {launch.kubernetes.image!r} cannot name an image",
        fix="write it as registry/name:tag or registry/name@sha256:digest, the name in lower-case letters",
        why="a pod with another name of an image is made, and then waits for ever with InvalidImageName",
    ),
    Rule(
        id="J912",
        key="launch.slurm.time",
        severity="warning",
        broken=lambda f: _on(f, "slurm") and _is_two_parts(f.config.launch.slurm.time),
        message="launch.slurm.time = {launch.slurm.time!r} is {minutes} minutes to Slurm, not hours",
        fix='write all three parts: "{hours}" for hours, "{three}" where minutes are meant',
        words=_two_parts_in_words,
        why="two parts are minutes and seconds there, and the job ends when they are over",
    ),
    Rule(
        id="J913",
        key="launch.grace_seconds",
        broken=lambda f: _on(f, "slurm") and f.config.launch.grace_seconds > LONGEST_NOTICE_S,
        message="grace_seconds = {launch.grace_seconds:,.0f} is more than the {longest:,} s that --signal can be early",
        fix="set it to {longest} or less",
        words=lambda _: {"longest": LONGEST_NOTICE_S},
        edit=lambda _: {"launch.grace_seconds": LONGEST_NOTICE_S},
        why="the signal comes that long before the time limit; its seconds have 16 bits, and sbatch refuses more",
    ),
    Rule(
        id="J914",
        key="launch.max_restarts",
        broken=lambda f: _on(f, "kubernetes") and f.config.launch.max_restarts > 0 and not f.config.checkpoint.enable,
        message="max_restarts = {launch.max_restarts} on Kubernetes without checkpoint.enable has no step to go on "
        "from",
        fix="set checkpoint.enable to true, or max_restarts to 0",
        edit=lambda _: {"launch.max_restarts": 0},
        why="a pod that is started again goes on from a checkpoint, or would write over what the first one wrote",
    ),
)

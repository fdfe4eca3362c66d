"""System calls that Python does not offer, on x86-64 and ARM64."""

from __future__ import annotations

import ctypes
import os
import platform

_libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 2, 24, 38
NEW_MOUNTS, NEW_IPC, NEW_NETWORK = 0x00020000, 0x08000000, 0x40000000

# By machine: the processor's number in seccomp.
AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS = {  # name: (x86_64, aarch64); None if there is no such call
    "accept": (43, 202),
    "accept4": (288, 242),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bind": (49, 200),
    "bpf": (321, 280),
    "capset": (126, 91),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fcntl": (72, 25),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "listen": (50, 201),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_notify": (244, 184),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "socket": (41, 198),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "timer_create": (222, 107),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}


def number(name: str) -> int | None:
    """Return the number of a call on this machine; None if there is none."""
    column = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
    return None if column is None else _NUMBERS[name][column]


def call(name: str, *arguments: object) -> int:
    """Make a system call. Raise OSError if it fails."""
    found = number(name)
    if found is None:
        raise OSError(f"no system call {name} is known on {platform.machine()}")
    return _check(_libc.syscall(ctypes.c_long(found), *map(_word, arguments)), name)


def prctl(option: int, *arguments: object) -> int:
    """Make the system call prctl. Raise OSError if it fails."""
    words = [*map(_word, arguments), *[ctypes.c_ulong(0)] * (4 - len(arguments))]
    return _check(_libc.prctl(option, *words), f"prctl({option})")


def unshare(what: int) -> None:
    """Leave the namespaces that are shared with the parent."""
    call("unshare", what)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Attach a file system or a part of one."""
    words = (source.encode(), target.encode(), kind.encode() if kind else None)
    _check(_libc.mount(*words, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def _word(argument: object) -> object:
    """Widen integers to machine words; ctypes would pass half of one."""
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _check(result: int, what: str) -> int:
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result

"""What the tiers of the sandbox keep, and why a machine may have the second one only."""

from __future__ import annotations

from pathlib import Path

from autograder.i18n import _

SECOND_TIER_LACKS = (
    _("names, sizes and times of files outside the allow-list can be asked for, though not read"),
    _("the disk is bounded by looking now and then, not by a file system of the sandbox's own"),
    _("the host's name and the numbers of its processes can be seen"),
    _("threads are bounded by memory, not by a number"),
    _("before Linux 6.12 the sandbox's processes are kept from signals by seccomp alone"),
)
"""What the second tier cannot keep, one line each."""

_SETTINGS = (
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        _(
            "AppArmor refuses user namespaces to ordinary users: run as root, or "
            "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`."
        ),
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        _(
            "The kernel refuses user namespaces to ordinary users: run as root, or "
            "`sysctl kernel.unprivileged_userns_clone=1`."
        ),
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        _("No user namespaces are allowed: `sysctl user.max_user_namespaces=10000`."),
    ),
)


def why_no_namespaces() -> list[str]:
    """The settings of this machine that stand in the way of the first tier, and how to change."""
    found = []
    for path, value, text in _SETTINGS:
        try:
            if Path(path).read_text(encoding="ascii").strip() == value:
                found.append(text)
        except OSError:  # this kernel has no such setting
            continue
    return found

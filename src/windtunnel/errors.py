"""Every error that a person can cause or meet.

WindtunnelError
├── InputError              something from outside is wrong: file, trace, config, table  (also ValueError)
│   ├── TraceError          Kineto, Chakra, execution traces, with file, byte or event number
│   └── SchemaVersionError  written by a newer windtunnel
├── GraphError              a rule of the graph is broken: cycle, dangling edge, negative time  (also ValueError)
├── NotApplicableError      this what-if has nothing to act on here; says why
│   └── InEffectError       the change that it asks about is in effect already
├── InfeasibleError         no plan fits; names the binding constraint and the smallest relaxation that would
├── PriceError              no price for these tasks on this machine; lists operators, not rows
│   └── AbsentDeviceError   what must be measured ran on a device that is not here
├── FlightError             the real run failed or was not comparable; carries the tail of its log
├── MissingExtraError       says which extra to install  (also ImportError)
└── ImplausibleError        an answer of ours cannot be true: a defect of windtunnel, not of the input
"""

from __future__ import annotations

__all__ = [
    "AbsentDeviceError",
    "FlightError",
    "GraphError",
    "ImplausibleError",
    "InEffectError",
    "InfeasibleError",
    "InputError",
    "MissingExtraError",
    "NotApplicableError",
    "PriceError",
    "SchemaVersionError",
    "TraceError",
    "WindtunnelError",
]


class WindtunnelError(Exception):
    """Say what is wrong, where, and what to do; base of every error of the package.

    Parameters
    ----------
    message : str
        What is wrong, in the user's words, with numbers.
    where : str
        File, line, field, node or event.
    fix : str
        What to do about it.
    """

    exit_code = 2

    def __init__(self, message: str = "", *, where: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.message]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # keyword-only arguments are lost by the default pickling, so the attributes travel as state
        return (type(self), (self.message,), self.__dict__)


class InputError(WindtunnelError, ValueError):
    """Something from outside is wrong: a file, a trace, a configuration, a table."""


class TraceError(InputError):
    """A trace cannot be read; says the file and the byte or event number."""


class SchemaVersionError(InputError):
    """A file was written by a version that this one does not know."""


class GraphError(WindtunnelError, ValueError):
    """A rule of the graph is broken: a cycle, a dangling edge, a negative time."""


class NotApplicableError(WindtunnelError):
    """A what-if has nothing to act on in this graph."""

    exit_code = 1


class InEffectError(NotApplicableError):
    """The program already does what a what-if asks about, so that there is nothing to predict.

    Parameters
    ----------
    reverse : str
        The request that undoes it, such as ``"no-activation-checkpointing"``; empty where there is none.
    """

    def __init__(self, message: str = "", *, where: str = "", fix: str = "", reverse: str = "") -> None:
        super().__init__(message, where=where, fix=fix or (f"ask the reverse: {reverse}" if reverse else ""))
        self.reverse = reverse


class InfeasibleError(WindtunnelError):
    """No plan fits; names the binding constraint."""

    exit_code = 1


class PriceError(WindtunnelError):
    """Some tasks have no price on this machine."""


class AbsentDeviceError(PriceError):
    """What must be measured ran on a device that is not here."""


class FlightError(WindtunnelError):
    """A real run failed or was not comparable.

    Parameters
    ----------
    log_tail : str
        The last lines that the run printed.
    """

    def __init__(self, message: str = "", *, where: str = "", fix: str = "", log_tail: str = "") -> None:
        super().__init__(message, where=where, fix=fix)
        self.log_tail = log_tail


class MissingExtraError(WindtunnelError, ImportError):
    """An optional dependency is not installed; says which extra brings it."""


class ImplausibleError(WindtunnelError):
    """An answer of ours is outside of what can be true: a defect of windtunnel, which it reports as its own."""

"""Calling the hooks of middleware, without those that do nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dramatiq import Broker, Middleware
from dramatiq.middleware import MiddlewareError, ShutdownNotifications, TimeLimit

#: Hooks which register the thread that they are called in, for an exception to be thrown into it.
THREAD_HOOKS = (
    TimeLimit.before_process_message,
    TimeLimit.after_process_message,
    ShutdownNotifications.before_process_message,
    ShutdownNotifications.after_process_message,
)
#: A hook's name, and who does something in it.
_Hook = tuple[str, tuple[Middleware, ...]]


class Hooks:
    """The hooks of a broker's middleware, as :meth:`dramatiq.Broker.emit_before` and ``emit_after`` call them.

    Most middleware overrides two or three of the two dozen hooks, and a message passes eight. Which do is looked up
    once for each list of middleware: a hook that is put on an object after it was first called for is not seen.

    Parameters:
      broker: whose middleware.
      without: functions that are left out where they are somebody's hook.
    """

    def __init__(self, broker: Broker, without: Collection[Any] = ()) -> None:
        self._broker = broker
        self._without = without
        # Replaced as one, because threads look at both.
        self._known: tuple[list[Middleware], dict[str, _Hook]] = ([], {})

    def who(self, hook: str) -> tuple[Middleware, ...]:
        """The middleware that does something in this hook, in the broker's order."""
        when, _, signal = hook.partition("_")
        return self._hook(when, signal)[1]

    def _hook(self, when: str, signal: str) -> _Hook:
        seen, known = self._known
        middleware = self._broker.middleware
        # The list is anybody's to change. Comparing it is a walk over a few pointers.
        if seen != middleware:
            seen, known = self._known = (middleware.copy(), {})
        found = known.get(when + signal)
        if found is None:
            hook = f"{when}_{signal}"
            found = known[when + signal] = hook, tuple(each for each in seen if self._is_asked(each, hook))
        return found

    def _is_asked(self, middleware: Middleware, hook: str) -> bool:
        return _overrides(middleware, hook) and getattr(type(middleware), hook, None) not in self._without

    def before(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the ``before_`` hooks.

        Raises:
          MiddlewareError: what a hook means for the caller; whatever else it raises is logged.
        """
        hook, who = self._hook("before", signal)
        for middleware in who:
            try:
                getattr(middleware, hook)(self._broker, *args, **kwargs)
            except MiddlewareError:
                raise
            except Exception:
                self._failed(hook, middleware)

    def after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the ``after_`` hooks, last middleware first; what a hook raises is logged."""
        hook, who = self._hook("after", signal)
        for middleware in reversed(who):
            try:
                getattr(middleware, hook)(self._broker, *args, **kwargs)
            except Exception:
                self._failed(hook, middleware)

    def _failed(self, hook: str, middleware: Middleware) -> None:
        self._broker.logger.critical("Unexpected failure in %s of %r.", hook, middleware, exc_info=True)


def _overrides(middleware: Middleware, hook: str) -> bool:
    if hook in getattr(middleware, "__dict__", ()):
        return True
    default = getattr(Middleware, hook, None)
    # What has no such hook at all is asked all the same, and told of.
    return default is None or getattr(type(middleware), hook, None) is not default

"""The plumbing behind the make verbs: it runs tests under watchdogs, counts them and adds them up.

Needs nothing but the standard library, so that it runs before anything is installed. `docs/dev/ci.md` says what each
verb does with it.
"""

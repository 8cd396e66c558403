"""The types of cached functions, as mypy sees them."""

from __future__ import annotations

from pathlib import Path

from test_actor_signatures import mypy

SIGNATURES = Path(__file__).with_name("cached_signatures.py")


def test_cached_functions_keep_the_signature_of_their_functions(tmp_path: Path) -> None:
    # Two claims that are wrong are found, and nothing else: were the types Any, no claim would be.
    claims = tmp_path / "claims.py"
    claims.write_text(SIGNATURES.read_text() + '\nassert_type(plain("a"), int)\nwith_options(b"")\n')
    checked = mypy(claims, tmp_path / "cache")
    assert "Found 2 errors" in checked.stdout, checked.stdout + checked.stderr
    assert "[assert-type]" in checked.stdout
    assert "[arg-type]" in checked.stdout

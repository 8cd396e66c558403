"""The files of TLS are tried before anything connects, so that an error names the file and not the server."""

from __future__ import annotations

import os
import ssl

from echomq_tasks.config import Config
from echomq_tasks.errors import ConfigError


def check_files(config: Config) -> None:
    """Read the certificates and the key that ``config`` names; nothing when it asks for no TLS.

    Raises:
        ConfigError: one of them is missing, unreadable or not what its option takes.
    """
    if not config.ssl:
        return
    for name in ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"):
        path = getattr(config, name)
        try:
            if path is not None and name == "ssl_ca_path":
                os.listdir(path)  # OpenSSL passes over a directory that is not there
            elif path is not None:
                open(path, "rb").close()
        except OSError as error:
            what = "a directory of certificates" if name == "ssl_ca_path" else "a PEM file"
            raise ConfigError(
                f"{name}={path!r} cannot be read ({error.strerror}): give the path of {what} this process may read"
            ) from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if config.ssl_ca_certs is not None:
            context.load_verify_locations(cafile=config.ssl_ca_certs)
    except ssl.SSLError as error:
        raise ConfigError(
            f"ssl_ca_certs={config.ssl_ca_certs!r} holds no certificates ({error.reason or error}): it must be PEM "
            "text, -----BEGIN CERTIFICATE-----"
        ) from error
    try:
        if config.ssl_certfile is not None:
            # The password is for a key that wants one: else OpenSSL asks for it on the terminal, and waits.
            context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password="")
    except ssl.SSLError as error:
        raise ConfigError(
            f"ssl_certfile={config.ssl_certfile!r} and ssl_keyfile={config.ssl_keyfile!r} cannot be used "
            f"({error.reason or error}): they must be a certificate and its own key, PEM text without a passphrase. "
            "Without ssl_keyfile the key is in the certificate's file"
        ) from error

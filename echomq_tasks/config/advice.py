"""What to do instead of an option that belongs to redis-py, Dramatiq's RedisBroker or an actor."""

from __future__ import annotations

_REAPED = "remove it: a job comes back by its lease, and the workers themselves see to that"
_NO_REPEAT = (
    "remove it: no command is repeated blindly, a write might be done twice. What can be repeated safely is, once, by "
    "the job's id"
)
_OF_ACTORS = "it is an option of the actor, @dramatiq.actor({name}=...), or of the middleware Retries"
_OF_BROKER = "it is an option of EchoMQBroker, not of a connection: write EchoMQBroker(url, {name}=...)"
_OURS = "remove it: the client is set up for the wire, and this is part of it"
_TLS_DEFAULT = "remove it: TLS follows the defaults of Python's ssl module, and the server decides on the rest"

# People arrive with the arguments of Dramatiq's RedisBroker and of redis-py in hand: say what replaces each.
ADVICE: dict[str, str] = {
    "namespace": "remove it: key names are fixed by the wire, so every runtime finds the same queue. "
    "Use another db= or another server to keep two applications apart",
    "maintenance_chance": _REAPED,
    "requeue_deadline": _REAPED,
    "requeue_interval": _REAPED,
    "heartbeat_timeout": "leases replace heartbeats: give the broker lease= instead, in seconds",
    "dead_message_ttl": "give the broker dead_ttl= instead, in seconds, and dead_max= for how many are kept",
    "client": "a ready-made redis client may repeat commands by itself; "
    "pass connection=echomq_tasks.connection.connect(...) instead",
    "connection_pool": "the pool is made here, because every connection in it is fenced: give a URL, or host= and "
    "port=, and max_connections= for its size",
    "socket_timeout": "use timeout=, seconds to wait for a reply",
    "socket_connect_timeout": "use connect_timeout=, seconds to wait for the connection itself",
    "health_check_interval": "remove it: a broken connection is noticed when it is used, and replaced",
    "decode_responses": "remove it: payloads are bytes, and replies stay bytes",
    "encoding": "remove it: payloads are bytes, and text in them is UTF-8",
    "encoding_errors": "remove it: payloads are bytes, and text in them is UTF-8",
    "unix_socket_path": "write the URL unix:///run/valkey/valkey.sock",
    "path": "write the URL unix:///run/valkey/valkey.sock",
    "startup_nodes": "write the URL valkey+cluster://host1:6379,host2:6379",
    "sentinels": "write the URL valkey+sentinel://host1:26379,host2:26379/<master name>",
    "service_name": "write the URL valkey+sentinel://host1:26379,host2:26379/<master name>",
    "sentinel_kwargs": "use sentinel_username= and sentinel_password=",
    "credential_provider": "use username= and password=",
    "ssl_ca_data": "write the certificates to a file and give its path as ssl_ca_certs=",
    "ssl_password": "give a key file without a passphrase, readable by this user only, as ssl_keyfile=",
    **dict.fromkeys(("retry", "retry_on_timeout", "retry_on_error", "cluster_error_retry_attempts"), _NO_REPEAT),
    **dict.fromkeys(("max_retries", "min_backoff", "max_backoff", "retry_when", "throws"), _OF_ACTORS),
    **dict.fromkeys(("lease", "max_stalled", "dead_ttl", "dead_max", "middleware", "connection"), _OF_BROKER),
    **dict.fromkeys(("ssl_include_verify_flags", "ssl_exclude_verify_flags", "ssl_context"), _TLS_DEFAULT),
    **dict.fromkeys(("ssl_validate_ocsp", "ssl_validate_ocsp_stapled", "ssl_ocsp_context"), _TLS_DEFAULT),
    **dict.fromkeys(("ssl_ocsp_expected_cert", "ssl_min_version", "ssl_ciphers"), _TLS_DEFAULT),
    **dict.fromkeys(("socket_keepalive", "socket_keepalive_options", "socket_read_size", "socket_type"), _OURS),
    **dict.fromkeys(("single_connection_client", "lib_name", "lib_version", "driver_info", "parser_class"), _OURS),
    **dict.fromkeys(("redis_connect_func", "connection_class", "legacy_responses", "event_dispatcher"), _OURS),
    **dict.fromkeys(("cache", "cache_config", "maint_notifications_config", "read_from_replicas"), _OURS),
    **dict.fromkeys(("oss_cluster_maint_notifications_handler", "require_full_coverage"), _OURS),
}

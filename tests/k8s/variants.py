"""Values that turn on each part of the chart, alone and together, by what they are for."""

from typing import Any

from tests.k8s.chart import PRESETS, REVISION, preset

PER_REPLICA = {"mode": "perReplica", "download": "initContainer"}
MONITORING = {
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "rules": {"enabled": True},
    "dashboard": {"enabled": True},
}
ROUTER = {"enabled": True, "image": {"tag": "1.13.0"}}
PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}

VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "insecure": {"apiKeys": {"secretName": "", "insecure": True}},
    "by-tag": {"image": {"digest": "", "tag": "0.1.0", "pullSecrets": ["pull"]}},
    "three-replicas-one-volume": {"replicas": 3, "modelCache": {"accessModes": ["ReadWriteMany"]}},
    "three-replicas-a-volume-each": {"replicas": 3, "modelCache": PER_REPLICA},
    "existing-claim": {
        "replicas": 2,
        "modelCache": {"existingClaim": "weights", "download": "none", "accessModes": ["ReadWriteMany"]},
    },
    "prefetch": {"modelCache": {"prefetch": ["f" * 40, REVISION]}},
    "init-container": {"modelCache": {"download": "initContainer", "hubToken": {"secretName": "hub"}}},
    "hub-token": {"modelCache": {"hubToken": {"secretName": "hub"}, "extraEnv": [{"name": "A", "value": "b"}]}},
    "two-gpus": {"gpu": {"count": 2}, "engineArgs": ["--log-level", "info"]},
    "settings": {"settings": {"max-prompt-tokens": 32768, "max-waiting-tokens": 12_000_000, "max-aspect-ratio": 2.5}},
    "hpa": {"autoscaling": {"kind": "hpa"}, "modelCache": {"accessModes": ["ReadWriteMany"]}},
    "keda": {
        "autoscaling": {"kind": "keda", "prometheusAddress": "http://prometheus.monitoring:9090"},
        "modelCache": PER_REPLICA,
    },
    "router": {"router": ROUTER, "replicas": 2, "modelCache": PER_REPLICA},
    "ingress": {
        "ingress": {"enabled": True, "className": "nginx", "host": "clef.example", "tlsSecretName": "clef-tls"}
    },
    "http-route": {
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "door"}], "hostnames": ["clef.example"]},
        "networkPolicy": {"from": [PEER], "metricsFrom": [PEER], "extraEgress": [{"to": [PEER]}]},
    },
    "monitoring": {"metrics": MONITORING},
    "no-network-policy": {"networkPolicy": {"enabled": False}},
    "own-service-account": {"serviceAccount": {"create": False, "name": "ours"}},
    "extras": {
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraVolumes": [{"name": "certificates", "configMap": {"name": "certificates"}}],
        "extraVolumeMounts": [{"name": "certificates", "mountPath": "/etc/certificates", "readOnly": True}],
        "podLabels": {"team": "billing"},
        "podAnnotations": {"note": "hello"},
        "commonLabels": {"owner": "billing"},
        "nodeSelector": {"pool": "gpu"},
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "serving",
        "runtimeClassName": "nvidia",
        "model": {"servedName": "clef"},
        "test": {"apiKey": {"secretName": "a-key"}},
    },
    "everything": {
        "router": ROUTER,
        "replicas": 3,
        "modelCache": PER_REPLICA,
        "metrics": MONITORING,
        "autoscaling": {"kind": "keda", "prometheusAddress": "http://prometheus.monitoring:9090"},
        "ingress": {"enabled": True, "host": "clef.example"},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "door"}]},
        "gpu": {"count": 2, "products": ["NVIDIA-H200"]},
    },
} | {path.stem: preset(path) for path in PRESETS}

"""Holds what is under deploy/ against schemas and, where they are there, the real tools. Needs no network.

Prints one line for each thing that holds, `SKIPPED: ...` for what could not be looked at, and one line for each fault;
exits 1 when there is a fault. Called by tests/it/deploy.rs.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

try:
    import jsonschema
    import kubernetes_validate
    import yaml
except ImportError as missing:
    print(f"SKIPPED: {missing.name} is not installed; tests/run installs what tests/python/requirements.txt names")
    sys.exit(0)

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SCHEMAS = ROOT / "tests" / "schemas"
# What Kubernetes defines, by group; "" is the core.
KUBERNETES = {"", "apps", "autoscaling", "policy", "networking.k8s.io"}
NEWEST = "1.37"

faults = []


def fault(where, what):
    faults.append(f"FAULT: {where}: {what}")


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def judge(where, document):
    """One Kubernetes object against its schema."""
    api, kind = document.get("apiVersion", ""), document.get("kind", "")
    group, _, version = api.rpartition("/")
    if group in KUBERNETES:
        try:
            kubernetes_validate.validate(document, NEWEST, strict=True)
        except kubernetes_validate.ValidationError as error:
            fault(where, f"{kind}: {'.'.join(map(str, error.path))}: {error.message}")
        return
    file = SCHEMAS / f"{group}_{version}_{kind}.json"
    if not file.exists():
        fault(where, f"there is no schema of {api} {kind}; tests/schemas/README.md says how they came")
        return
    validator = jsonschema.Draft202012Validator(json.loads(file.read_text()))
    for error in validator.iter_errors(document):
        fault(where, f"{kind}: {'.'.join(map(str, error.absolute_path))}: {error.message}")


def manifests():
    """Every object that is written down, and every object that kustomize makes of them."""
    kustomizations, count = [], 0
    for folder in ["kubernetes", "envoy-gateway", "istio", "kgateway", "inference-pool"]:
        for file in sorted((DEPLOY / folder).rglob("*.yaml")):
            where = file.relative_to(ROOT)
            if file.name == "kustomization.yaml":
                kustomizations.append(file)
                continue
            for document in documents(file.read_text()):
                # Policies of ours and values for a chart are no objects.
                if "apiVersion" in document:
                    judge(where, document)
                    count += 1
    print(f"ok: {count} objects fit their schemas")
    return kustomizations


def rendered(kustomizations):
    if not shutil.which("kubectl"):
        print("SKIPPED: kubectl is not there, so no kustomization was rendered")
        return
    for file in kustomizations:
        where = file.parent.relative_to(ROOT)
        if documents(file.read_text())[0]["kind"] == "Component":
            continue
        made = subprocess.run(["kubectl", "kustomize", str(file.parent)], capture_output=True, text=True)
        if made.returncode:
            fault(where, made.stderr.strip())
            continue
        objects = documents(made.stdout)
        for document in objects:
            judge(f"{where}, rendered", document)
        print(f"ok: {where} renders to {len(objects)} objects that fit their schemas")


def tool(name, arguments, where, cwd=None):
    """Runs a tool, looked for beside this Python too."""
    path = shutil.which(name) or shutil.which(name, path=str(pathlib.Path(sys.executable).parent))
    if not path:
        print(f"SKIPPED: {name} is not there, so {where} was not looked at by it")
        return
    run = subprocess.run([path, *arguments], capture_output=True, text=True, cwd=cwd)
    if run.returncode:
        fault(where, f"{name}: {(run.stderr or run.stdout).strip()}")
    else:
        print(f"ok: {name} takes {where}")


def prometheus():
    folder = DEPLOY / "prometheus"
    tool("promtool", ["check", "rules", "rules.yaml"], "deploy/prometheus/rules.yaml", cwd=folder)
    tool("promtool", ["test", "rules", "tests.yaml"], "deploy/prometheus/tests.yaml", cwd=folder)
    with tempfile.TemporaryDirectory() as beside:
        shutil.copy(folder / "rules.yaml", beside)
        shutil.copy(DEPLOY / "compose" / "prometheus.yml", beside)
        tool("promtool", ["check", "config", "prometheus.yml"], "deploy/compose/prometheus.yml", cwd=beside)
    [operators] = documents((DEPLOY / "kubernetes/monitoring/prometheusrule.yaml").read_text())
    [plain] = documents((folder / "rules.yaml").read_text())
    if operators["spec"] != plain:
        fault("deploy/kubernetes/monitoring/prometheusrule.yaml", "its rules are not those of deploy/prometheus/rules.yaml")


def systemd():
    with tempfile.TemporaryDirectory() as folder:
        # The unit is judged with a program that is there.
        unit = (DEPLOY / "systemd/tallygate.service").read_text().replace("/usr/local/bin/tallygate", "/bin/true")
        file = pathlib.Path(folder) / "tallygate.service"
        file.write_text(unit)
        tool("systemd-analyze", ["verify", "--man=no", str(file)], "deploy/systemd/tallygate.service")


def copies():
    """What is copied from deploy/envoy/ext_proc.yaml is still the same."""
    source = (DEPLOY / "envoy/ext_proc.yaml").read_text()
    [envoy] = documents(source)
    chain = envoy["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    ours = next(one for one in chain["http_filters"] if one["name"] == "envoy.filters.http.ext_proc")
    [istio] = documents((DEPLOY / "istio/envoyfilter.yaml").read_text())
    copy = next(one for one in istio["spec"]["configPatches"] if one["applyTo"] == "HTTP_FILTER")["patch"]["value"]
    copy["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = "tallygate"
    if copy != ours:
        fault("deploy/istio/envoyfilter.yaml", "its filter is not that of deploy/envoy/ext_proc.yaml")
    moved = source
    for there, here in [
        ("127.0.0.1, port_value: 10000", "0.0.0.0, port_value: 10000"),
        ("127.0.0.1, port_value: 9901", "0.0.0.0, port_value: 9901"),
        ("127.0.0.1, port_value: 8000", "engine, port_value: 8000"),
        ("127.0.0.1, port_value: 9001", "tallygate, port_value: 9001"),
        ("type: STATIC", "type: STRICT_DNS"),
    ]:
        moved = moved.replace(there, here)
    if documents(moved) != documents((DEPLOY / "compose/envoy.yaml").read_text()):
        fault("deploy/compose/envoy.yaml", "it is not deploy/envoy/ext_proc.yaml with other addresses")


def images():
    """The image is built of files that are there, and every compose mount is one."""
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for line in ignore:
        if line.startswith("!") and not (ROOT / line[1:]).exists():
            fault("deploy/Dockerfile.dockerignore", f"{line[1:]} is not there")
    [compose] = documents((DEPLOY / "compose/compose.yaml").read_text())
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            if not (DEPLOY / "compose" / volume.split(":")[0]).exists():
                fault("deploy/compose/compose.yaml", f"{name} mounts {volume}, which is not there")


rendered(manifests())
prometheus()
systemd()
copies()
images()
tool("docker-compose", ["-f", "compose.yaml", "config", "--quiet"], "deploy/compose/compose.yaml", cwd=DEPLOY / "compose")
print("\n".join(faults))
sys.exit(1 if faults else 0)

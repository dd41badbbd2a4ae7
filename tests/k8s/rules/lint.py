"""What we and KubeRay's operator (1.7) ask of manifests that are applied together, beyond each object's schema."""

from collections.abc import Iterator

from tests.k8s.manifests import Object, all_overlays, made, name_of, pod_templates, ray_objects
from tests.k8s.rules import clusters, pods, reachability, schemas, texts

_CLUSTER_WIDE = ("Namespace", "PriorityClass", "ClusterQueue", "ResourceFlavor")


def problems_with(objects: list[Object], ground: list[Object]) -> list[str]:
    """Return the problems of objects that are applied together, over a ground that was applied before.

    Where a schema finds something, nothing else is looked at: the other rules rely on the schemas.
    """
    nameless = [each for each in objects if not each.get("kind") or not each.get("metadata", {}).get("name")]
    if nameless:
        return [f"{name_of(each)}: an object has a kind and a name" for each in nameless]
    by_schema = [f"{name_of(each)}: {problem}" for each in objects for problem in schemas.problems_with(each)]
    if by_schema:
        return by_schema
    objects = made(objects)
    names = {name_of(each) for each in objects}
    there = [*objects, *(each for each in ground if name_of(each) not in names)]
    found = [*_names(objects), *_reachable(objects, there)]
    config_maps = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ConfigMap"}
    for each in objects:
        found += [f"{name_of(each)}: {problem}" for problem in schemas.problems_with_ours(each["kind"], each)]
        for name, template in pod_templates(each):
            spec = template["spec"]
            of_pod = [*schemas.problems_with_ours("Pod", spec), *pods.problems_with(spec, there)]
            found += [f"{name_of(each)} {name}: {problem}" for problem in of_pod]
    for each in config_maps.values():
        for name, text in each["data"].items():
            if name.endswith(".yaml"):
                found += [f"{name_of(each)}: {problem}" for problem in texts.problems_with_configuration(name, text)]
    for ray in ray_objects(objects):
        problems = [*clusters.problems_with(ray, objects)]
        if ray["kind"] == "RayJob":
            problems += texts.problems_with_job(ray, config_maps)
            problems += texts.problems_with_output(ray, texts.config_of(ray, config_maps))
        if ray["kind"] == "RayService":
            problems += texts.problems_with_service(ray)
        found += [f"{name_of(ray)}: {problem}" for problem in problems]
    return found


def _reachable(objects: list[Object], there: list[Object]) -> Iterator[str]:
    """Policies of the ground against the pods of all overlays, or pods of an overlay against the ground's policies."""
    policies = [each for each in there if each["kind"] == "NetworkPolicy"]
    if any(each["kind"] == "NetworkPolicy" for each in objects):
        yield from reachability.problems_with(policies, [*reachability.pods_of([*there, *all_overlays()])])
    elif policies:
        of_ours = reachability.problems_with(policies, [*reachability.pods_of(objects)])
        yield from (problem for problem in of_ours if "selects no pod" not in problem)


def _names(objects: list[Object]) -> Iterator[str]:
    seen = [name_of(each) for each in objects]
    yield from (f"{name}: there twice" for name in sorted({name for name in seen if seen.count(name) > 1}))
    for each in objects:
        namespace = each["metadata"].get("namespace")
        if (namespace is not None) == (each["kind"] in _CLUSTER_WIDE):
            yield f"{name_of(each)}: {'has no' if namespace is None else 'has'} namespace"
        elif namespace not in (None, "dray"):
            yield f"{name_of(each)}: everything is in the namespace dray, not in {namespace!r}"

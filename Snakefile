from snakemake.utils import min_version

min_version("9.27")


report: "workflow/report/front.rst"


# A file given with --configfile replaces the default; Snakemake alone would merge the two.
if not workflow.overwrite_configfiles:

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/geometry.smk"
include: "workflow/rules/concepts.smk"
include: "workflow/rules/backends.smk"
include: "workflow/rules/mamba.smk"


rule all:
    default_target: True
    input:
        rules.geometry.input if CONFIG.models else [],
        rules.concepts.input if in_all("concepts") else [],
        # Not for the many runs of a sweep: only where the configuration has their sections.
        rules.backends.input if in_all("backends") else [],
        rules.mamba.input if in_all("mamba") else [],


onstart:
    announce()


onsuccess:
    finish(failed=False)


onerror:
    finish(failed=True)

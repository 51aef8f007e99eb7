from snakemake.utils import min_version

min_version("9.0")


# A file given with --configfile replaces the default; Snakemake alone would merge the two.
if not workflow.overwrite_configfiles:

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/geometry.smk"


rule all:
    default_target: True
    input:
        rules.geometry.input,


onstart:
    announce()


onsuccess:
    print(where_results_are())

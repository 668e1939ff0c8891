#include "base/machine.h"
#include "prep_test.h"
#include "test.h"

TEST(machine_parses_memory) {
    const char *text =
        "MemTotal:       25000000 kB\nMemFree:   1 kB\nMemAvailable:   24000000 kB\n";
    CHECK_EQ(machine_parse_meminfo(text, "MemTotal"), 25000000ll * 1024);
    CHECK_EQ(machine_parse_meminfo(text, "MemAvailable"), 24000000ll * 1024);
    CHECK_EQ(machine_parse_meminfo(text, "Mem"), 0);
    CHECK_EQ(machine_parse_meminfo("", "MemTotal"), 0);
}

TEST(machine_names_the_cpu) {
    char name[64];
    machine_parse_cpu("processor\t: 0\nmodel name\t: AMD EPYC 9654\nmodel\t: 1\n", name, 64);
    CHECK_STR(name, "AMD EPYC 9654");
    machine_parse_cpu("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", name, 64);
    CHECK_STR(name, "Neoverse V2");
    machine_parse_cpu("CPU implementer\t: 0x99\nCPU part\t: 0x001\n", name, 64);
    CHECK_STR(name, "Arm core 0x99/0x1");
    machine_parse_cpu("nothing of use", name, 64);
    CHECK_STR(name, "");
}

TEST(machine_parses_limits) {
    CHECK_EQ(machine_parse_limit("1073741824\n"), 1 << 30);
    CHECK_EQ(machine_parse_limit("max\n"), 0);
    CHECK_EQ(machine_parse_limit("9223372036854771712\n"), 0); /* "none" of version 1 */
}

TEST(machine_knows_this_machine) {
    machine m;
    machine_ask(&m);
    CHECK(m.n_usable_cores >= 1 && m.n_cores >= m.n_usable_cores);
    CHECK(m.total_bytes >= m.available_bytes && m.available_bytes > 0);
    CHECK_CONTAINS(m.system, "Linux");
}

/* The quota of a process in these cgroups, whose files are in the test's folder. */
static double quota_of(const char *own) {
    char path[4096];
    put_file("own", own);
    snprintf(path, sizeof path, "%s/own", test_folder());
    return cpu_quota(path, test_folder());
}

TEST(cpu_quota_of_version_2) {
    CHECK(quota_of("0::/\n") == 0);
    put_file("cpu.max", "max 100000\n");
    CHECK(quota_of("0::/\n") == 0);
    put_file("cpu.max", "250000 100000\n");
    CHECK(quota_of("0::/\n") == 2.5);
    CHECK(quota_of("0::/kubepods/pod1\n") == 2.5); /* a path that only the host has */
    put_file("kubepods/cpu.max", "150000 100000\n");
    put_file("kubepods/pod1/cpu.max", "max 100000\n");
    CHECK(quota_of("0::/kubepods/pod1\n") == 1.5);
    put_file("kubepods/pod1/cpu.max", "1000 100000\n");
    CHECK(quota_of("0::/kubepods/pod1\n") == .01);
    CHECK(quota_of("0::/kubepods\n") == 1.5);
}

TEST(cpu_quota_of_version_1) {
    put_file("cpu/cpu.cfs_quota_us", "-1\n");
    put_file("cpu/cpu.cfs_period_us", "100000\n");
    CHECK(quota_of("4:cpu,cpuacct:/\n") == 0);
    put_file("cpu/cpu.cfs_quota_us", "400000\n");
    CHECK(quota_of("7:memory:/x\n4:cpuacct,cpu:/docker/1\n0::/\n") == 4);
    CHECK(quota_of("7:cpuset:/\n3:cpuacct:/\n") == 0);
    put_file("cpu/docker/cpu.cfs_quota_us", "50000\n");
    put_file("cpu/docker/cpu.cfs_period_us", "100000\n");
    CHECK(quota_of("4:cpu:/docker/1\n") == .5);
}

TEST(cpu_quota_of_files_that_make_no_sense) {
    static const char *const bad[] = {
        "", "1", "100000", "-5 100000", "100000 0", "nan 1", "1e300 1e-300", "x y", "5 -5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_file("cpu.max", bad[i]);
        CHECK(quota_of("0::/\n") == 0);
    }
    put_file("cpu.max", "200000 100000\n");
    CHECK(quota_of("\n0\n0:\n0::\n0::x\n::\n") == 0);
    CHECK(cpu_quota("/nonexistent", test_folder()) == 0);
}

#include "base/machine.h"
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

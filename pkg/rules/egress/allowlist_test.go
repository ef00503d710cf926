package egress

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCheckName(t *testing.T) {
	for _, name := range []string{"git.example.com", "*.example.com", "*.corp", "corp", "_srv.example.com", "a-b.c-d.example", strings.Repeat("a", 63) + ".com"} {
		assert.NoError(t, CheckName(name), name)
	}
	for _, name := range []string{
		"", "*", "*.", ".", "git.example.com.", "Git.example.com", "a..b", ".example.com", "git.*.com", "*git.com", "**.com", "*.*.com",
		"10.1.2.3", "1", "fd00::1", "[::1]", "a b.com", "-a.com", "a-.com", "exämple.com", strings.Repeat("a", 64) + ".com", strings.Repeat("a.", 127) + "com", "git.com\n",
	} {
		assert.Error(t, CheckName(name), name)
	}
}

func TestParseAllowList(t *testing.T) {
	_, err := ParseAllowList([]string{"10.0.0.0/8", "10.0.0.1/8", "fd00::/8", "ten", "127.0.0.1/32"}, []string{"git.corp", "*"})
	assert.EqualError(t, err, `"10.0.0.1/8" must end in zero bits; use 10.0.0.0/8
"fd00::/8" must be an IPv4 network such as 10.20.0.0/16; isolated guests have no IPv6
"ten" must be an IPv4 network such as 10.20.0.0/16
"127.0.0.1/32" must not be in 127.0.0.0/8, which nothing allows (an address of the Mac itself)
"*" must be a DNS name in lower case such as git.example.com, or *.example.com for the names below it`)
}

func TestAllowsName(t *testing.T) {
	l := list(t, nil, []string{"git.example.com", "*.corp"})
	for name, want := range map[string]bool{
		"git.example.com": true, "GIT.example.com.": true, "a.corp": true, "a.b.corp.": true,
		"example.com": false, "a.git.example.com": false, "corp": false, ".corp": false, "evilcorp": false, "a.corp.evil": false, "": false, ".": false, "*": false,
	} {
		assert.Equal(t, want, l.AllowsName(name), name)
	}
}

func TestNarrow(t *testing.T) {
	tests := map[string]struct {
		rackCIDRs, classCIDRs, want  []string
		rackNames, classNames, names []string
	}{
		"nothing":            {rackCIDRs: []string{"10.0.0.0/8"}, rackNames: []string{"git.corp"}},
		"the same":           {rackCIDRs: []string{"10.0.0.0/8"}, classCIDRs: []string{"10.0.0.0/8"}, want: []string{"10.0.0.0/8"}, rackNames: []string{"git.corp"}, classNames: []string{"git.corp"}, names: []string{"git.corp"}},
		"a smaller class":    {rackCIDRs: []string{"10.0.0.0/8"}, classCIDRs: []string{"10.1.0.0/16", "10.2.0.0/16"}, want: []string{"10.1.0.0/16", "10.2.0.0/16"}, rackNames: []string{"*.corp"}, classNames: []string{"git.corp", "*.ci.corp"}, names: []string{"git.corp", "*.ci.corp"}},
		"a larger class":     {rackCIDRs: []string{"10.1.0.0/16"}, classCIDRs: []string{"0.0.0.0/0"}, want: []string{"10.1.0.0/16"}, rackNames: []string{"git.corp"}, classNames: []string{"*.corp"}, names: []string{"git.corp"}},
		"others":             {rackCIDRs: []string{"10.1.0.0/16"}, classCIDRs: []string{"10.2.0.0/16"}, rackNames: []string{"git.corp"}, classNames: []string{"*.git.corp"}},
		"overlaps are known": {rackCIDRs: []string{"10.0.0.0/8", "10.1.0.0/16"}, classCIDRs: []string{"10.1.0.0/16", "10.0.0.0/8"}, want: []string{"10.1.0.0/16", "10.0.0.0/8"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := list(t, tt.rackCIDRs, tt.rackNames).Narrow(list(t, tt.classCIDRs, tt.classNames))
			assert.Equal(t, list(t, tt.want, tt.names), got)
		})
	}
}

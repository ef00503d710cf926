package macnode

import (
	"testing"

	"github.com/stretchr/testify/assert"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

func TestFreeStorage(t *testing.T) {
	const gib = int64(1) << 30
	assert.Equal(t, "199Gi", freeStorage(nil, 200*gib-1).String(), "the first report")
	for name, test := range map[string]struct {
		reported string
		free     int64
		want     string
	}{
		"no change":                  {"200Gi", 200 * gib, "200Gi"},
		"less than 5 %":              {"200Gi", 191 * gib, "200Gi"},
		"more, less than 5 %":        {"200Gi", 209 * gib, "200Gi"},
		"5 %":                        {"200Gi", 190 * gib, "190Gi"},
		"5 % more":                   {"200Gi", 210*gib + 5, "210Gi"},
		"less than a GiB":            {"12Gi", 11*gib + 1, "12Gi"},
		"a GiB":                      {"12Gi", 11 * gib, "11Gi"},
		"the Mac becomes unhealthy":  {"10Gi", 10*gib - 1, "9Gi"},
		"the Mac is healthy again":   {"9Gi", 10 * gib, "10Gi"},
		"rounded, and still healthy": {"10Gi", 10*gib + 5, "10Gi"},
		"full":                       {"1Gi", 0, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			hardware := &rackv1alpha1.MacNodeHardware{FreeStorage: scalar.MustParse(test.reported)}
			assert.Equal(t, test.want, freeStorage(hardware, test.free).String())
		})
	}
}

package validation

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/internal/check/checktest"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
)

func validClass() *rack.MacNodeClass {
	return &rack.MacNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "m4-pro", ResourceVersion: "1"},
		Spec: rack.MacNodeClassSpec{
			Model:            "Mac mini (2024)",
			ModelIdentifiers: []string{"Mac16,10", "Mac16,11"},
			Chip:             "Apple M4 Pro",
			Capacity:         rack.MachineResources{CPU: scalar.MustParse("12"), Memory: scalar.MustParse("24Gi"), Storage: scalar.MustParse("512G")},
			HostReserved:     rack.MachineResources{CPU: scalar.MustParse("2"), Memory: scalar.MustParse("4Gi"), Storage: scalar.MustParse("60Gi")},
			SKU:              "mac-m4-pro-24h",
		},
	}
}

func TestValidateMacNodeClass(t *testing.T) {
	tests := map[string]struct {
		change func(*rack.MacNodeClass)
		want   []string
	}{
		"valid":                {func(*rack.MacNodeClass) {}, nil},
		"nothing reserved":     {func(c *rack.MacNodeClass) { c.Spec.HostReserved = rack.MachineResources{} }, nil},
		"no model":             {func(c *rack.MacNodeClass) { c.Spec.Model = "" }, []string{"spec.model: Required"}},
		"no chip":              {func(c *rack.MacNodeClass) { c.Spec.Chip = "" }, []string{"spec.chip: Required"}},
		"SKU of two lines":     {func(c *rack.MacNodeClass) { c.Spec.SKU = "a\nb" }, []string{"spec.sku"}},
		"model identifier":     {func(c *rack.MacNodeClass) { c.Spec.ModelIdentifiers[1] = "Mac16" }, []string{"spec.modelIdentifiers[1]"}},
		"identifier twice":     {func(c *rack.MacNodeClass) { c.Spec.ModelIdentifiers[1] = "Mac16,10" }, []string{"spec.modelIdentifiers[1]: Duplicate"}},
		"too many identifiers": {func(c *rack.MacNodeClass) { c.Spec.ModelIdentifiers = make([]string, 65) }, []string{"spec.modelIdentifiers: Too many"}},
		"no memory":            {func(c *rack.MacNodeClass) { c.Spec.Capacity.Memory = scalar.Quantity{} }, []string{"spec.capacity.memory: Required", "spec.hostReserved.memory: Invalid"}},
		"no reserve":           {func(c *rack.MacNodeClass) { c.Spec.HostReserved = rack.MachineResources{} }, nil},
		"memory in words":      {func(c *rack.MacNodeClass) { c.Spec.HostReserved.Memory = scalar.Quantity{Text: "some"} }, []string{"spec.hostReserved.memory: Invalid value: \"some\": must be an amount such as"}},
		"half a core":          {func(c *rack.MacNodeClass) { c.Spec.Capacity.CPU = scalar.MustParse("11500m") }, []string{"spec.capacity.cpu: Invalid"}},
		"negative reserve":     {func(c *rack.MacNodeClass) { c.Spec.HostReserved.CPU = scalar.MustParse("-1") }, []string{"spec.hostReserved.cpu: Invalid"}},
		"all of it reserved":   {func(c *rack.MacNodeClass) { c.Spec.HostReserved.Memory = scalar.MustParse("24Gi") }, []string{"spec.hostReserved.memory: Invalid value: \"24Gi\": must be less than the capacity, 24Gi"}},
		"exabytes":             {func(c *rack.MacNodeClass) { c.Spec.Capacity.Storage = scalar.MustParse("7E") }, []string{"spec.capacity.storage: Invalid value: \"7E\": must be 1 to 1Pi"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			class := validClass()
			tt.change(class)
			checktest.Errors(t, tt.want, ValidateMacNodeClass(class))
			checktest.Errors(t, tt.want, ValidateMacNodeClassUpdate(class, validClass()))
		})
	}
}

func TestValidateMacNodeClassStatusUpdate(t *testing.T) {
	tests := map[string]struct {
		status rack.MacNodeClassStatus
		want   []string
	}{
		"empty":           {rack.MacNodeClassStatus{}, nil},
		"counted":         {rack.MacNodeClassStatus{Total: 15, Available: 1, Leased: 2, Held: 3, Quarantined: 4, Offline: 5}, nil},
		"more than there": {rack.MacNodeClassStatus{Total: 14, Available: 1, Leased: 2, Held: 3, Quarantined: 4, Offline: 5}, []string{"status.total: Invalid value: 14: the other counts add up to 15"}},
		"occupied":        {rack.MacNodeClassStatus{Total: 1, Offline: 1, Occupied: 1}, nil},
		"over-occupied":   {rack.MacNodeClassStatus{Total: 1, Leased: 1, Occupied: 2}, []string{"status.occupied: Invalid value: 2: must be at most total (1)"}},
		"negative":        {rack.MacNodeClassStatus{Held: -1}, []string{"status.held: Invalid"}},
		"overflow":        {rack.MacNodeClassStatus{Available: 1<<31 - 1, Leased: 1<<31 - 1}, []string{"add up to 4294967294"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			class := validClass()
			class.Status = tt.status
			checktest.Errors(t, tt.want, ValidateMacNodeClassStatusUpdate(class, validClass()))
		})
	}
}

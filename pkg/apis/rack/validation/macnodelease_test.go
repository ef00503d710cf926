package validation

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/internal/check/checktest"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
)

func hours(n int) *scalar.Duration {
	return scalar.NewDuration(time.Duration(n) * time.Hour)
}

func at(h int) *metav1.Time {
	t := metav1.NewTime(now.Add(time.Duration(h) * time.Hour))
	return &t
}

func cache(name, size string) rack.LeaseCache {
	return rack.LeaseCache{Name: name, SizeLimit: scalar.MustParse(size)}
}

func validLease() *rack.MacNodeLease {
	return &rack.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Name: "ci", Namespace: "acme", ResourceVersion: "1"},
		Spec:       rack.MacNodeLeaseSpec{ClassName: "m4-pro", MinimumDuration: hours(48), PrefetchImages: []string{"macos-26"}},
		Status:     rack.MacNodeLeaseStatus{Phase: rack.MacNodeLeasePending},
	}
}

func boundLease() *rack.MacNodeLease {
	lease := validLease()
	lease.Status = rack.MacNodeLeaseStatus{Phase: rack.MacNodeLeaseHeld, BoundAt: at(0), EarliestReleaseAt: at(48), NodeName: "mac-a1"}
	return lease
}

func withoutFloor() *rack.MacNodeLease {
	lease := boundLease()
	lease.Status.EarliestReleaseAt = nil
	return lease
}

func TestValidateMacNodeLease(t *testing.T) {
	tests := map[string]struct {
		change func(*rack.MacNodeLease)
		want   []string
	}{
		"valid":             {func(*rack.MacNodeLease) {}, nil},
		"serial number":     {func(l *rack.MacNodeLease) { l.Spec.SerialNumber = "C07DR00AQ6NV" }, nil},
		"24 hours":          {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = hours(24) }, nil},
		"no duration":       {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = nil }, nil},
		"three years":       {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = hours(3 * 365 * 24) }, nil},
		"ends by itself":    {func(l *rack.MacNodeLease) { l.Spec.ExpireAfter = hours(48) }, nil},
		"no namespace":      {func(l *rack.MacNodeLease) { l.Namespace = "" }, []string{"metadata.namespace: Required"}},
		"name with a dot":   {func(l *rack.MacNodeLease) { l.Name = "a.b" }, []string{"metadata.name: Invalid"}},
		"name of 64":        {func(l *rack.MacNodeLease) { l.Name = strings.Repeat("a", 64) }, []string{"metadata.name: Invalid"}},
		"forged floor":      {func(l *rack.MacNodeLease) { l.Finalizers = []string{"macrack.io/floor"} }, []string{"metadata.finalizers[0]: Forbidden"}},
		"no class":          {func(l *rack.MacNodeLease) { l.Spec.ClassName = "" }, []string{"spec.className: Required value: name a MacNodeClass"}},
		"class":             {func(l *rack.MacNodeLease) { l.Spec.ClassName = "M4" }, []string{"spec.className: Invalid"}},
		"bad serial number": {func(l *rack.MacNodeLease) { l.Spec.SerialNumber = "x" }, []string{"spec.serialNumber: Invalid"}},
		"one hour":          {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = hours(1) }, []string{`spec.minimumDuration: Invalid value: "1h": rule 3 (at least 24 hours): a Mac is leased for 24h or more, not 1h0m0s; leave the field out for 24h`}},
		"a second short": {func(l *rack.MacNodeLease) {
			l.Spec.MinimumDuration = scalar.NewDuration(24*time.Hour - time.Second)
		}, []string{"rule 3"}},
		"zero":              {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = &scalar.Duration{Text: "0s"} }, []string{"rule 3"}},
		"negative":          {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = hours(-24) }, []string{"rule 3"}},
		"longest there is":  {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = &scalar.Duration{Text: "106751d"} }, []string{"at most 26280h"}},
		"half seconds":      {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = scalar.NewDuration(48*time.Hour + time.Second/2) }, []string{"spec.minimumDuration: Invalid value: \"48h0m0.5s\": must be whole seconds"}},
		"expires early":     {func(l *rack.MacNodeLease) { l.Spec.ExpireAfter = hours(47) }, []string{"spec.expireAfter: Invalid value: \"47h\": must be spec.minimumDuration, 48h, or more"}},
		"expires late":      {func(l *rack.MacNodeLease) { l.Spec.ExpireAfter = hours(3*365*24 + 1) }, []string{"spec.expireAfter: Invalid"}},
		"expires unevenly":  {func(l *rack.MacNodeLease) { l.Spec.ExpireAfter = scalar.NewDuration(48*time.Hour + 1) }, []string{"spec.expireAfter: Invalid"}},
		"days":              {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = &scalar.Duration{Text: "3d"} }, nil},
		"minutes":           {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = &scalar.Duration{Text: "1440m"} }, nil},
		"weeks":             {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = &scalar.Duration{Text: "3 weeks"} }, []string{`spec.minimumDuration: Invalid value: "3 weeks": must be a duration such as 90s, 24h, 1h30m or 3d; accepted units: d (days of 24 hours), h, m, s`}},
		"no text":           {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = &scalar.Duration{} }, []string{`spec.minimumDuration: Invalid value: ""`}},
		"expires in a word": {func(l *rack.MacNodeLease) { l.Spec.ExpireAfter = &scalar.Duration{Text: strings.Repeat("1d", 1<<20)} }, []string{`spec.expireAfter: Invalid value: "1d1d`}},
		"17 images":         {func(l *rack.MacNodeLease) { l.Spec.PrefetchImages = make([]string, 17) }, []string{"spec.prefetchImages: Too many: 17: must have at most 16"}},
		"caches": {func(l *rack.MacNodeLease) {
			l.Spec.Caches = []rack.LeaseCache{cache("a", "64Mi"), cache("b", "16Ti")}
		}, nil},
		"9 caches":          {func(l *rack.MacNodeLease) { l.Spec.Caches = make([]rack.LeaseCache, 9) }, []string{"spec.caches: Too many: 9: must have at most 8"}},
		"cache twice":       {func(l *rack.MacNodeLease) { l.Spec.Caches = []rack.LeaseCache{cache("a", "1Gi"), cache("a", "1Gi")} }, []string{"spec.caches[1].name: Duplicate"}},
		"path as a cache":   {func(l *rack.MacNodeLease) { l.Spec.Caches = []rack.LeaseCache{cache("../a", "1Gi")} }, []string{"spec.caches[0].name: Invalid"}},
		"parent as a cache": {func(l *rack.MacNodeLease) { l.Spec.Caches = []rack.LeaseCache{cache("..", "1Gi")} }, []string{"spec.caches[0].name: Invalid"}},
		"cache in capitals": {func(l *rack.MacNodeLease) { l.Spec.Caches = []rack.LeaseCache{cache("A", "1Gi")} }, []string{"spec.caches[0].name: Invalid"}},
		"no cache name":     {func(l *rack.MacNodeLease) { l.Spec.Caches = []rack.LeaseCache{cache("", "1Gi")} }, []string{"spec.caches[0].name: Required"}},
		"no cache size":     {func(l *rack.MacNodeLease) { l.Spec.Caches = []rack.LeaseCache{{Name: "a"}} }, []string{"spec.caches[0].sizeLimit: Required value: must be 64Mi to 16Ti"}},
		"small cache":       {func(l *rack.MacNodeLease) { l.Spec.Caches = []rack.LeaseCache{cache("a", "63Mi")} }, []string{"spec.caches[0].sizeLimit: Invalid"}},
		"large cache":       {func(l *rack.MacNodeLease) { l.Spec.Caches = []rack.LeaseCache{cache("a", "17Ti")} }, []string{"spec.caches[0].sizeLimit: Invalid"}},
		"uneven cache":      {func(l *rack.MacNodeLease) { l.Spec.Caches = []rack.LeaseCache{cache("a", "1G")} }, []string{"spec.caches[0].sizeLimit: Invalid value: \"1G\": must be whole MiB"}},
		"image twice":       {func(l *rack.MacNodeLease) { l.Spec.PrefetchImages = []string{"a", "a"} }, []string{"spec.prefetchImages[1]: Duplicate"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			lease := validLease()
			tt.change(lease)
			checktest.Errors(t, tt.want, ValidateMacNodeLease(lease))
		})
	}
}

func TestValidateMacNodeLeaseUpdate(t *testing.T) {
	tests := map[string]struct {
		change func(*rack.MacNodeLease)
		want   []string
	}{
		"nothing":              {func(*rack.MacNodeLease) {}, nil},
		"lengthened":           {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = hours(72) }, nil},
		"images":               {func(l *rack.MacNodeLease) { l.Spec.PrefetchImages = nil }, nil},
		"ends by itself":       {func(l *rack.MacNodeLease) { l.Spec.ExpireAfter = hours(96) }, nil},
		"shortened":            {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = hours(47) }, []string{`spec.minimumDuration: Forbidden: rule 3 (at least 24 hours): it is 48h and can only be lengthened; ask for 48h or more`}},
		"left out":             {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = nil }, []string{"spec.minimumDuration: Forbidden: rule 3"}},
		"shortened to an hour": {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = hours(1) }, []string{"a Mac is leased for 24h or more"}},
		"the same in days":     {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = &scalar.Duration{Text: "2d"} }, nil},
		"lengthened by a word": {func(l *rack.MacNodeLease) { l.Spec.MinimumDuration = &scalar.Duration{Text: "2 weeks"} }, []string{"spec.minimumDuration: Invalid value: \"2 weeks\": must be a duration"}},
		"class":                {func(l *rack.MacNodeLease) { l.Spec.ClassName = "m4" }, []string{"spec.className: Forbidden: field is immutable; create another lease instead"}},
		"serial number":        {func(l *rack.MacNodeLease) { l.Spec.SerialNumber = "C07DR00AQ6NV" }, []string{"spec.serialNumber: Forbidden: field is immutable; create another lease instead"}},
		"cache added": {func(l *rack.MacNodeLease) {
			l.Spec.Caches = []rack.LeaseCache{cache("a", "1Gi")}
		}, []string{"spec.caches: Forbidden: field is immutable; create another lease instead"}},
		"forged floor": {func(l *rack.MacNodeLease) { l.Finalizers = []string{"macrack.io/floor"} }, []string{"metadata.finalizers[0]: Forbidden"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			lease := validLease()
			tt.change(lease)
			checktest.Errors(t, tt.want, ValidateMacNodeLeaseUpdate(lease, validLease()))
		})
	}
}

func TestValidateMacNodeLeaseStatusUpdate(t *testing.T) {
	bound := metav1.Condition{Type: rack.MacNodeLeaseConditionBound, Status: metav1.ConditionFalse, Reason: "NoFreeMac", LastTransitionTime: now}
	tests := map[string]struct {
		old    *rack.MacNodeLease
		change func(*rack.MacNodeLeaseStatus)
		want   []string
	}{
		"condition":          {validLease(), func(s *rack.MacNodeLeaseStatus) { s.Conditions = []metav1.Condition{bound} }, nil},
		"condition twice":    {validLease(), func(s *rack.MacNodeLeaseStatus) { s.Conditions = []metav1.Condition{bound, bound} }, []string{"status.conditions[1]: Duplicate"}},
		"unknown phase":      {boundLease(), func(s *rack.MacNodeLeaseStatus) { s.Phase = "Gone" }, []string{"status.phase: Unsupported"}},
		"bound without Mac":  {validLease(), func(s *rack.MacNodeLeaseStatus) { s.Phase = rack.MacNodeLeaseBound }, []string{"status.phase: Forbidden: the lease has no Mac, and leaves Pending only by its binding"}},
		"held to releasing":  {boundLease(), func(s *rack.MacNodeLeaseStatus) { s.Phase = rack.MacNodeLeaseReleasing }, nil},
		"forged binding":     {validLease(), func(s *rack.MacNodeLeaseStatus) { s.BoundAt = at(0) }, []string{"status.boundAt: Invalid value: \"2026-11-01T12:00:00Z\": rule 3"}},
		"forged floor":       {validLease(), func(s *rack.MacNodeLeaseStatus) { s.EarliestReleaseAt = at(0) }, []string{"status.earliestReleaseAt: Invalid"}},
		"binding backwards":  {boundLease(), func(s *rack.MacNodeLeaseStatus) { s.BoundAt = at(-1) }, []string{"status.boundAt: Invalid value: \"2026-11-01T11:00:00Z\": rule 3 (at least 24 hours): it is 2026-11-01T12:00:00Z, set by the lease's binding, and never changes"}},
		"binding forwards":   {boundLease(), func(s *rack.MacNodeLeaseStatus) { s.BoundAt = at(1) }, []string{"status.boundAt: Invalid"}},
		"binding cleared":    {boundLease(), func(s *rack.MacNodeLeaseStatus) { s.BoundAt = nil }, []string{"status.boundAt: Invalid value: \"null\""}},
		"floor backwards":    {boundLease(), func(s *rack.MacNodeLeaseStatus) { s.EarliestReleaseAt = at(47) }, []string{"status.earliestReleaseAt: Invalid value: \"2026-11-03T11:00:00Z\": rule 3 (at least 24 hours): it is 2026-11-03T12:00:00Z, which follows from the lease's binding, and never moves backwards"}},
		"no floor, restored": {withoutFloor(), func(s *rack.MacNodeLeaseStatus) { s.EarliestReleaseAt = at(48) }, nil},
		"floor cleared":      {boundLease(), func(s *rack.MacNodeLeaseStatus) { s.EarliestReleaseAt = nil }, []string{"status.earliestReleaseAt: Invalid value: \"null\""}},
		"floor restored":     {boundLease(), func(s *rack.MacNodeLeaseStatus) { s.EarliestReleaseAt = at(49) }, nil},
		"everything cleared": {boundLease(), func(s *rack.MacNodeLeaseStatus) { *s = rack.MacNodeLeaseStatus{Phase: rack.MacNodeLeasePending} }, []string{"status.boundAt", "status.earliestReleaseAt"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			lease := tt.old.DeepCopy()
			tt.change(&lease.Status)
			checktest.Errors(t, tt.want, ValidateMacNodeLeaseStatusUpdate(lease, tt.old))
		})
	}
}

func TestValidateMacNodeLeaseBinding(t *testing.T) {
	checktest.Errors(t, nil, ValidateMacNodeLeaseBinding(&rack.MacNodeLeaseBinding{NodeName: "mac-a1"}))
	checktest.Errors(t, []string{"nodeName: Required"}, ValidateMacNodeLeaseBinding(&rack.MacNodeLeaseBinding{}))
	checktest.Errors(t, []string{"nodeName: Invalid"}, ValidateMacNodeLeaseBinding(&rack.MacNodeLeaseBinding{NodeName: "../mac"}))
}

func TestValidateMacNodeLeaseRelease(t *testing.T) {
	tests := map[string]struct {
		taints []string
		want   []string
	}{
		"none":            {nil, nil},
		"no value":        {[]string{"macrack.io/unleased:NoSchedule"}, nil},
		"empty value":     {[]string{"macrack.io/unleased=:NoSchedule"}, nil},
		"value":           {[]string{"macrack.io/tenant=acme:NoExecute", "a:PreferNoSchedule"}, nil},
		"no effect":       {[]string{"macrack.io/unleased"}, []string{"nodeTaints[0]: Invalid"}},
		"unknown effect":  {[]string{"macrack.io/unleased:Never"}, []string{"nodeTaints[0]: Invalid"}},
		"no key":          {[]string{"=acme:NoSchedule"}, []string{"nodeTaints[0]: Invalid"}},
		"effect and more": {[]string{"a:NoSchedule:NoSchedule"}, []string{"nodeTaints[0]: Invalid"}},
		"bad value":       {[]string{"a=b=c:NoSchedule"}, []string{"nodeTaints[0]: Invalid"}},
		"too long":        {[]string{strings.Repeat("a", 513)}, []string{"nodeTaints[0]: Too long"}},
		"too many":        {make([]string, 129), []string{"nodeTaints: Too many"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			checktest.Errors(t, tt.want, ValidateMacNodeLeaseRelease(&rack.MacNodeLeaseRelease{NodeTaints: tt.taints}))
		})
	}
}

// FuzzValidateMacNodeLease looks for a lease that is valid although it is for less than 24 hours or
// its status moves a floor backwards, and for panics.
func FuzzValidateMacNodeLease(f *testing.F) {
	for _, lease := range []*rack.MacNodeLease{validLease(), boundLease()} {
		data, err := json.Marshal(lease)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		lease, old := &rack.MacNodeLease{}, boundLease()
		if json.Unmarshal(data, lease) != nil {
			return
		}
		if len(ValidateMacNodeLease(lease)) == 0 && lease.Spec.MinimumDuration != nil && lease.Spec.MinimumDuration.Value() < 24*time.Hour {
			t.Errorf("a lease for %s is valid", lease.Spec.MinimumDuration.Value())
		}
		ValidateMacNodeLeaseUpdate(lease, old)
		ValidateMacNodeLeaseUpdate(old, lease)
		if len(ValidateMacNodeLeaseStatusUpdate(lease, old)) == 0 {
			if lease.Status.BoundAt == nil || !lease.Status.BoundAt.Equal(old.Status.BoundAt) {
				t.Errorf("the binding moves from %v to %v", old.Status.BoundAt, lease.Status.BoundAt)
			}
			if lease.Status.EarliestReleaseAt == nil || lease.Status.EarliestReleaseAt.Before(old.Status.EarliestReleaseAt) {
				t.Errorf("the floor moves from %v to %v", old.Status.EarliestReleaseAt, lease.Status.EarliestReleaseAt)
			}
		}
	})
}

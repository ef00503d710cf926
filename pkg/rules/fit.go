package rules

import "k8s.io/apimachinery/pkg/api/resource"

// Resources are the resources of a Mac or of a virtual machine. A zero storage means no request.
type Resources struct {
	CPU, Memory, Storage resource.Quantity
}

// Add returns the sum.
func (r Resources) Add(o Resources) Resources {
	sum := Resources{r.CPU.DeepCopy(), r.Memory.DeepCopy(), r.Storage.DeepCopy()}
	sum.CPU.Add(o.CPU)
	sum.Memory.Add(o.Memory)
	sum.Storage.Add(o.Storage)
	return sum
}

// Sub returns the difference.
func (r Resources) Sub(o Resources) Resources {
	rest := Resources{r.CPU.DeepCopy(), r.Memory.DeepCopy(), r.Storage.DeepCopy()}
	rest.CPU.Sub(o.CPU)
	rest.Memory.Sub(o.Memory)
	rest.Storage.Sub(o.Storage)
	return rest
}

// CheckCaches refuses caches that do not leave room for an instance on the disk of a Mac of a
// class.
func CheckCaches(class string, capacity, reserved Resources, caches resource.Quantity) error {
	free := capacity.Sub(reserved).Storage
	if caches.Cmp(free) >= 0 {
		return refuse(Fit, "the caches have %s in all, but a Mac of class %q has %s for them and for its instances; use smaller caches, or a larger Mac", caches.String(), class, free.String())
	}
	return nil
}

// CheckFit refuses an instance that does not fit on a Mac of a class: used plus asked must not
// exceed capacity minus reserved.
func CheckFit(class string, capacity, reserved, used, asked Resources) error {
	free := capacity.Sub(reserved).Sub(used)
	for _, r := range []struct {
		name        string
		asked, free resource.Quantity
	}{
		{"cpu", asked.CPU, free.CPU},
		{"memory", asked.Memory, free.Memory},
		{"storage", asked.Storage, free.Storage},
	} {
		if r.asked.Cmp(r.free) > 0 {
			return refuse(Fit, "the instance asks for %s %s, but a Mac of class %q has %s left for it; use a smaller instance class, or a larger Mac",
				r.asked.String(), r.name, class, r.free.String())
		}
	}
	return nil
}
